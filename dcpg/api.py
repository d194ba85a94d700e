"""The Python calls: `dcpg.train`, `dcpg.resume`, `dcpg.evaluate`, `dcpg.analyse`, `dcpg.load`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dcpg import agent as _agent
from dcpg import launch
from dcpg.agent import Agent
from dcpg.config import OWN, resolve
from dcpg.envs.make import EnvMaker, make_levels, splits
from dcpg.errors import BadInput
from dcpg.evaluation import ROUND, Protocol, play
from dcpg.launch import Run
from dcpg.watcher import Watcher

MakeEnv = Callable[[int, int], Any]  # (num_envs, seed) -> Gymnasium vector environment


def train(
    method: str,
    game: str | None = None,
    *,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
    preset: str = "paper",
    steps: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    init: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Train a method on a Procgen game, or on an environment of your own (`env`, and `test_env` with unseen levels)."""
    if (game is None) == (env is None):
        raise BadInput("Give either game=... (Procgen) or env=... (a function (num_envs, seed) -> vector environment).")
    name = game if game is not None else OWN + getattr(env, "__name__", "env").strip("<>")
    config = resolve(method, name, preset=preset, steps=steps, seed=seed, settings=settings)
    maker = EnvMaker(env, test_env) if env is not None else None
    directory = Path(out) if out is not None else default_directory(name, method, seed)
    return launch.start(config, directory, maker, watcher, Path(init) if init is not None else None)


def default_directory(game: str, method: str, seed: int) -> Path:
    """runs/GAME-METHOD-SEED."""
    return Path("runs") / f"{game.removeprefix(OWN)}-{method}-{seed}"


def resume(
    run: Run | str | Path,
    *,
    steps: int | None = None,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Go on exactly where a run stopped; with `steps`, to another end."""
    maker = EnvMaker(env, test_env) if env is not None else None
    return launch.resume(_directory(run), steps, maker, watcher)


def load(run: Run | str | Path, at: int | None = None, *, env: MakeEnv | None = None) -> Agent:
    """The trained agent: `.act(observation, greedy=False)` for one observation or a batch."""
    return _agent.load(_directory(run), at, EnvMaker(env) if env is not None else None)


def evaluate(
    run: Run | str | Path,
    *,
    levels: str = "test",
    episodes: int | None = None,
    greedy: bool = False,
    at: int | None = None,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
) -> dict[str, Any]:
    """Play on training levels, unseen levels, or each level of a list such as "0-19,120" exactly once."""
    maker = EnvMaker(env, test_env) if env is not None else None
    agent = _agent.load(_directory(run), at, maker)
    return evaluate_agent(agent, levels, episodes, greedy, maker)


def analyse(
    run: Run | str | Path,
    analysis: str,
    *,
    states: int | None = None,
    levels: int | None = None,
    episodes: int | None = None,
    at: int | None = None,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
) -> dict[str, Any]:
    """The paper's analyses: "stiffness", "values", "ood-actions", and "levels"; kept in the run's folder `analysis`."""
    from dcpg.analysis.offline import analyse as measure

    maker = EnvMaker(env, test_env) if env is not None else None
    return measure(_directory(run), analysis, states, levels, episodes, at, maker)


def evaluate_agent(
    agent: Agent, levels: str, episodes: int | None = None, greedy: bool = False, maker: EnvMaker | None = None
) -> dict[str, Any]:
    """`evaluate` for an agent that is loaded already."""
    c = agent.config
    protocol = Protocol.of(c, greedy)
    if levels in ("train", "test"):
        makers = splits(c, maker)
        if levels not in makers:
            raise BadInput("This environment has no unseen levels: give test_env=... .")
        vector = makers[levels](episodes or c.evaluation.episodes, agent.k)
        played = play(vector, agent.actor, agent.normaliser, protocol, (c.seed, "eval", levels, agent.k))
        vector.close()
        parts = [played]
    else:
        wanted = level_range(levels)
        if episodes is not None:
            raise BadInput(f"levels {levels!r} are played once each; leave episodes out.")
        parts = []
        for first in range(0, len(wanted), ROUND):
            vector = make_levels(c, wanted[first : first + ROUND])
            key = (c.seed, "eval", f"levels-{wanted[first]}", agent.k)
            parts.append(play(vector, agent.actor, agent.normaliser, protocol, key))
            vector.close()
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
        "predicted_value": mean("predicted_value"),
        "true_value": mean("true_value"),
        "true_value_own_gamma": mean("true_value_own_gamma"),
    }


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


def _directory(run: Run | str | Path) -> Path:
    return run.directory if isinstance(run, Run) else Path(run)


def recorded_levels(agent: Agent, levels: str) -> list[int]:
    """The levels of a video: those that were chosen, or four of the training levels or of unseen ones."""
    c = agent.config
    if c.game.startswith(OWN):
        raise BadInput("Videos are made on Procgen only.")
    if levels not in ("train", "test"):
        chosen = level_range(levels)
        if len(chosen) > 9:
            raise BadInput(f"A video shows at most nine levels side by side; {levels!r} has {len(chosen)}.")
        return chosen
    env = splits(c, None)[levels](4, agent.k)
    _, seeds = env.observe()
    env.close()
    return [int(s) for s in seeds]
