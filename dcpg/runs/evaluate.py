"""Playing an agent on training levels, unseen levels or chosen ones."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from dcpg.config.build import make_levels, protocol_of, splits
from dcpg.config.environments import EnvMaker
from dcpg.config.schema import OWN
from dcpg.core.evaluation import ROUND, Episodes, play
from dcpg.envs.base import VectorEnv
from dcpg.errors import BadInput
from dcpg.runs.agent import Agent
from dcpg.storage.rows import SPLITS, VALUES
from dcpg.text import option

MOST_EPISODES = 4096  # that are played at once
EPISODES = 4  # of a video on training levels or unseen ones


def check_episodes(episodes: int | None) -> None:
    """Refuse a number of episodes that environments cannot be made for; all of them play side by side."""
    if episodes is not None and not (isinstance(episodes, Integral) and 1 <= episodes <= MOST_EPISODES):
        raise BadInput(f"Give {option('episodes')} a whole number from 1 to {MOST_EPISODES:,}, not {episodes!r}.")


def half_width(returns: Sequence[float]) -> float:
    """Half the width of the 95% interval of the mean; 0 for a single episode."""
    return 1.96 * statistics.stdev(returns) / len(returns) ** 0.5 if len(returns) > 1 else 0.0


def evaluate_agent(
    agent: Agent, levels: str, episodes: int | None = None, greedy: bool = False, maker: EnvMaker | None = None
) -> dict[str, Any]:
    """`dcpg.evaluate` for an agent that is already loaded."""
    check_episodes(episodes)
    parts = _play(agent, levels, episodes, greedy, maker)
    counts = [len(p.returns) for p in parts]
    returns = [r for p in parts for r in p.returns]

    def mean(name: str) -> float:
        return float(sum(getattr(p, name) * n for p, n in zip(parts, counts, strict=True)) / sum(counts))

    return {
        "levels": levels,
        "steps": agent.steps,
        "greedy": greedy,
        "return": sum(returns) / len(returns),
        "returns": returns,
        "level_seeds": [s for p in parts for s in p.levels],
        "lengths": [n for p in parts for n in p.lengths],
        **{name: mean(name) for name in VALUES},
    }


def _play(agent: Agent, levels: str, episodes: int | None, greedy: bool, maker: EnvMaker | None) -> list[Episodes]:
    c, protocol = agent.config, protocol_of(agent.config, greedy)

    def played(env: VectorEnv, name: str) -> Episodes:
        found = play(env, agent.actor, agent.normaliser, protocol, (c.seed, "eval", name, agent.k))
        env.close()
        return found

    if levels in SPLITS:
        makers = splits(c, maker)
        if levels not in makers:
            raise BadInput(
                f"There are no unseen levels without {option('test-env')}; give it, or evaluate levels 'train'."
            )
        return [played(makers[levels](episodes or c.episodes_after(agent.steps), agent.k), levels)]
    wanted = level_range(levels)
    if episodes is not None:
        raise BadInput(f"levels {levels!r} are played once each; leave episodes out.")
    rounds = [wanted[first : first + ROUND] for first in range(0, len(wanted), ROUND)]
    return [played(make_levels(c, some), f"levels-{some[0]}") for some in rounds]


def level_range(text: str) -> list[int]:
    """The levels of "3,17,120-122": numbers and ranges A-B (both ends included), each level once, in this order."""
    chosen: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", part.strip())
        if found is None:
            raise BadInput(
                f"levels must be train, test, a range such as 0-19 or a list such as 3,17,120-122; got {text!r}."
            )
        a, b = int(found[1]), int(found[2] or found[1])
        if b < a or b >= 2**31 - 1 or len(chosen) + b - a >= 100_000:
            raise BadInput(f"levels {text!r} must go upwards, below 2147483647, and hold at most 100,000 levels.")
        chosen += range(a, b + 1)
    if len(set(chosen)) < len(chosen):
        twice = next(level for level, count in Counter(chosen).items() if count > 1)
        raise BadInput(f"levels {text!r} name level {twice} more than once; each level is played once.")
    return chosen


def environments_to_record(agent: Agent, levels: str, maker: EnvMaker | None = None) -> VectorEnv:
    """The environments of a video, which draw themselves: one per chosen level, or four episodes of your own."""
    if not agent.config.game.startswith(OWN):
        return make_levels(agent.config, recorded_levels(agent, levels), render=True)
    if levels not in SPLITS:
        raise BadInput("Levels can be chosen by number only on Procgen; use train or test.")
    makers = splits(agent.config, maker, render=True)
    if levels not in makers:
        raise BadInput(f"There are no unseen levels without {option('test-env')}; give it, or record levels 'train'.")
    return makers[levels](EPISODES, agent.k)


def recorded_levels(agent: Agent, levels: str) -> list[int]:
    """The levels of a video: those that were chosen, or four training levels or four unseen ones."""
    c = agent.config
    if levels not in SPLITS:
        chosen = level_range(levels)
        if len(chosen) > 9:
            raise BadInput(f"A video shows at most nine levels side by side; {levels!r} has {len(chosen)}.")
        return chosen
    env = splits(c, None)[levels](EPISODES, agent.k)
    _, seeds = env.observe()
    env.close()
    return [int(s) for s in seeds]
