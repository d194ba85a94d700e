"""The analyses of a run on disk: each returns plain data, which `dcpg analyse` shows and writes to the run."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dcpg.analysis.pictures import PICTURES
from dcpg.analysis.sample import rollouts
from dcpg.config.build import make_levels, protocol_of
from dcpg.config.environments import EnvMaker
from dcpg.config.schema import ANALYSES, OWN, Config
from dcpg.config.written import EXPORT, parse_written, read_written, warn_of_plugins
from dcpg.core import evaluation
from dcpg.core.evaluation import ROUND
from dcpg.core.stiffness import parameters_of, states_and_targets, stiffness
from dcpg.core.wrong_actions import HEAD, believed_actions
from dcpg.envs.procgen import ALL_LEVELS
from dcpg.errors import BadInput, StorageFailed, unknown
from dcpg.extras import need
from dcpg.runs.agent import Agent, load_agent
from dcpg.runs.records import STIFFNESS, read_run
from dcpg.runs.status import last_rows
from dcpg.seeding import key
from dcpg.storage.checkpoint import CheckpointStore
from dcpg.storage.files import dump, own_folder, read_json, write_atomic
from dcpg.storage.rows import SPLITS, Evaluation
from dcpg.storage.rundir import RunDirectory
from dcpg.text import drawn
from dcpg.training.owner import CONFIGURATION, is_of

Show = Callable[[str], None]
STATES = 16_384  # one rollout of the paper
BURN_IN = 1_000  # steps in each environment: the longest episode of most of Procgen's games
OPTIONS: Mapping[str, Mapping[str, int]] = {  # analysis -> option -> default
    "stiffness": {"states": STATES, "burn_in": BURN_IN},
    "ood-actions": {"states": STATES, "burn_in": BURN_IN},
    "values": {},
    "levels": {"levels": 200, "episodes": 1},  # the paper's training levels; episodes per level
}
MOST_RESULT = 16_000_000  # bytes


class DoesNotApply(BadInput):
    """The analysis has no meaning for this run's method or environment, whatever it has learnt."""


def options_of(analysis: str, given: Mapping[str, int | None], at: int | None = None) -> dict[str, int]:
    """The options of an analysis with its defaults; one that it does not use is refused."""
    if analysis not in ANALYSES:
        raise unknown("analysis", analysis, ANALYSES)
    typed = {name: value for name, value in given.items() if value is not None}
    for name in [*typed, *(["at"] if at is not None else [])]:
        if name not in OPTIONS[analysis] and (name != "at" or analysis == "values"):
            raise BadInput(f"{name} means nothing to {analysis}; leave it out.")
    for name, value in typed.items():
        least = 0 if name == "burn_in" else 1
        if value < least:
            raise BadInput(f"{name} must be at least {least}; got {value}.")
    if at is not None and at < 0:
        raise BadInput(f"at must be at least 0; got {at}.")
    return {**OPTIONS[analysis], **typed}


def check_applies(config: Config, analysis: str) -> None:
    """Refuse an analysis that has no meaning for such a run."""
    if analysis == "ood-actions" and not any(HEAD in heads for heads in config.declared().networks.values()):
        raise DoesNotApply(
            f"{config.method} has no discriminator to ask; ood-actions is for ddcpg, dcpg+f, dcpg+i, dcpg+fi and dppg."
        )
    if analysis == "levels" and config.game.startswith(OWN):
        raise DoesNotApply("Levels can be played one by one only on Procgen.")


def analyse(
    directory: Path,
    analysis: str,
    given: Mapping[str, int | None],
    at: int | None = None,
    maker: EnvMaker | None = None,
    show: Show = lambda text: None,
) -> dict[str, Any]:
    """Analyse a run and write the result below it; `given` has the options that were given."""
    options = options_of(analysis, given, at)
    run = RunDirectory(directory)
    written = read_written(run)
    config = written.config
    check_applies(config, analysis)
    about: dict[str, Any] = {
        "analysis": analysis, "method": config.method, "game": config.game, "seed": config.seed,
        CONFIGURATION: written.fingerprint,
    }  # fmt: skip
    about |= {"asked": options} if options else {}
    need("report", "The picture of an analysis", "matplotlib")
    if analysis == "values":
        warn_of_plugins(written)
        result = about | values_of(run)
    else:
        agent = load_agent(directory, at, maker)
        about["steps"] = agent.steps
        if analysis == "levels":
            result = about | levels_of(agent, options["levels"], options["episodes"], show)
        else:
            after = f", after a burn-in of {options['burn_in']:,}" if options["burn_in"] else ""
            show(f"{options['states']:,} states with the weights at {agent.steps:,} steps{after}")
            measure = stiffness_of if analysis == "stiffness" else ood_actions_of
            result = about | measure(agent, run, options["states"], maker, options["burn_in"])
    write_result(run, config, result, _file_name(analysis, at))
    return result


def kept_result(
    directory: Path, analysis: str, given: Mapping[str, int | None], at: int | None = None
) -> dict[str, Any] | None:
    """What the same analysis of the same weights has left; None if it must be made, or made again."""
    options, run = options_of(analysis, given, at), RunDirectory(directory)
    written = parse_written(run.read_config(), run.config, code=False)
    try:
        found = read_json(run.analysis / f"{_file_name(analysis, at)}.json", MOST_RESULT)
        steps = found["steps"][-1] if analysis == "values" else found["steps"]
        same = found["analysis"] == analysis and is_of(written, found) and found.get("asked", {}) == options
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    newest = _newest_steps(run, analysis) if at is None else at
    return found if same and steps == newest else None


def _file_name(analysis: str, at: int | None) -> str:
    return analysis if at is None else f"{analysis}-{at:012d}"


def _newest_steps(run: RunDirectory, analysis: str) -> int | None:
    """The steps of what the analysis would see: the newest weights, or the last evaluation; reads no weights."""
    if analysis == "values":
        rows = last_rows(run.evaluations.path, Evaluation)
        return rows[-1].steps if rows else None
    export = run.read_config().get(EXPORT)
    if export is not None:
        return export.get("steps") if isinstance(export, dict) else None
    names = CheckpointStore(run.checkpoints).names()
    return int(names[-1][:12]) if names else None


def stiffness_of(
    agent: Agent, run: RunDirectory, states: int, maker: EnvMaker | None = None, burn_in: int = 0
) -> dict[str, Any]:
    """Stiffness on fresh rollouts, and beside it what the run measured while training."""
    head = agent.method.advantages
    parts = [states_and_targets(tau, head) for tau in rollouts(agent, states, maker, burn_in)]
    frames, returns = (torch.cat(part)[:states] for part in zip(*parts, strict=True))
    found = stiffness(agent.network, head, frames, returns, agent.config.machine.chunk)
    if found.states < 2:
        raise BadInput("No two states have a value gradient: there is nothing to compare.")
    record = read_run(run.path)[0]
    recorded = record.stiffness
    return {
        "stiffness": found.stiffness,
        "sign_free": found.sign_free,
        "sign_agreement": found.sign_agreement,
        "states": found.states,
        "parameters": sum(p.numel() for p in parameters_of(agent.network, head)),
        "levels": record.setting.level_count,
        "recorded": {name: [getattr(row, name) for row in recorded] for name in ("steps", *STIFFNESS)},
        "recorded_mean": float(np.mean([row.stiffness for row in recorded])) if recorded else None,
    }


def ood_actions_of(
    agent: Agent, run: RunDirectory, states: int, maker: EnvMaker | None = None, burn_in: int = 0
) -> dict[str, Any]:
    """Wrong actions that the discriminator believes, on fresh rollouts on the training levels."""
    c = agent.config
    chunk, actions = c.machine.chunk, agent.spaces.actions
    taus = rollouts(agent, states, maker, burn_in)
    found = reduce(add, (believed_actions(agent.network, tau, c.game, actions, chunk) for tau in taus))
    if not found.counts.total:
        raise BadInput("No transition can be counted: every action taken is a special one.")
    return {
        "mean": found.counts.mean,
        "std": found.counts.std,
        "counts": list(found.counts.transitions),
        "transitions": found.counts.total,
        "raw_mean": found.raw.mean,
        "raw_std": found.raw.std,
        "raw_counts": list(found.raw.transitions),
        "left_out": found.raw.total - found.counts.total,
        "true_believed": found.true_believed / found.raw.total,
    }


def values_of(run: RunDirectory) -> dict[str, Any]:
    """Predicted and true value of initial states at every evaluation, with the paper's discount and the method's."""
    evaluations = read_run(run.path)[0].evaluations
    if not evaluations:
        raise BadInput(f"{run.evaluations.path} has no evaluation yet.")
    found: dict[str, Any] = {"steps": [e.steps for e in evaluations], "gamma": evaluation.PAPER_GAMMA}
    for split in SPLITS:
        episodes = [e.splits[split] for e in evaluations if split in e.splits]
        if not episodes:
            continue  # your own environment, without unseen levels
        columns = {
            "predicted": np.array([e.predicted_value for e in episodes]),
            "true": np.array([e.true_value for e in episodes]),
            "true_own_gamma": np.array([e.true_value_own_gamma for e in episodes]),
        }
        found[split] = {name: column.tolist() for name, column in columns.items()}
        for name in ("true", "true_own_gamma"):
            found[split][f"bias_{name}"] = (columns["predicted"] - columns[name]).tolist()
            found[split][f"mean_bias_{name}"] = float(np.mean(columns["predicted"] - columns[name]))
    return found


def levels_of(agent: Agent, count: int, episodes: int, show: Show = lambda text: None) -> dict[str, Any]:
    """The return on each training level (at most `count`), and on equally many levels that were never seen."""
    c = agent.config
    known: Sequence[int] = c.levels.seeds or range(c.levels.start, c.levels.start + c.levels.count)
    rng = np.random.default_rng(key(c.seed, "analyse", "levels"))
    train = list(known[:count]) if known else _drawn(rng, count, ())
    test = _drawn(rng, len(train), known)
    found: dict[str, Any] = {"episodes": episodes}
    for split, levels in (("train", train), ("test", test)):
        show(f"{len(levels)} {SPLITS[split]}")
        returns = _play(agent, levels, episodes)
        found[split] = {
            "levels": levels,
            "returns": returns.mean(1).tolist(),
            "mean": float(returns.mean()),
            "unsolved": [level for level, r in zip(levels, returns, strict=True) if (r <= 0).all()],
        }
    found["gap"] = found["train"]["mean"] - found["test"]["mean"]
    return found


def _drawn(rng: np.random.Generator, count: int, known: Sequence[int]) -> list[int]:
    """Different levels that are not among the known ones."""
    if ALL_LEVELS - len(known) < max(count, ALL_LEVELS // 1000):  # it would take long to meet one by chance
        raise BadInput("Nearly every level is a training level: there are too few that were never seen.")
    found = set[int]()
    while len(found) < count:
        level = int(rng.integers(ALL_LEVELS))
        if level not in known:
            found.add(level)
    return sorted(found)


def _play(agent: Agent, levels: Sequence[int], episodes: int) -> np.ndarray[Any, Any]:
    """The return of each episode, [levels, episodes]."""
    c, protocol = agent.config, protocol_of(agent.config)
    columns = []
    for episode in range(episodes):
        column: list[float] = []
        for first in range(0, len(levels), ROUND):
            env = make_levels(c, levels[first : first + ROUND])
            at = (c.seed, "eval", f"levels-{levels[first]}-{episode}", agent.k)
            column += evaluation.play(env, agent.actor, agent.normaliser, protocol, at).returns
            env.close()
        columns.append(column)
    return np.array(columns).T


def write_result(run: RunDirectory, config: Config, result: dict[str, Any], name: str) -> None:
    """Write DIR/analysis/NAME.json and NAME.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = PICTURES[result["analysis"]](result, config)
    title = f"{config.method} on {config.game.removeprefix(OWN)}, seed {config.seed}"
    figure.suptitle(drawn(title), fontsize=9, x=0.01, ha="left")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    plt.close(figure)
    folder = run.analysis
    try:
        own_folder(folder)
        write_atomic(folder / f"{name}.json", dump(result))
        write_atomic(folder / f"{name}.png", picture.getvalue())
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written to ({error}).") from None
