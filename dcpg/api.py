"""What the command line can do, as Python calls: `dcpg.train`, `dcpg.evaluate`, `dcpg.api.report` and the others."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpg.config.build import EnvMaker
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN
from dcpg.config.written import other_library, read_written
from dcpg.errors import BadInput, unknown
from dcpg.extras import need
from dcpg.runs.agent import Agent, load_agent
from dcpg.storage.rundir import RunDirectory
from dcpg.training import start as starting
from dcpg.training.observer import RunObserver
from dcpg.training.start import Run

if TYPE_CHECKING:
    from dcpg.report.write import Report
    from dcpg.sweep.driver import SweepObserver
    from dcpg.sweep.engine import Engine
    from dcpg.sweep.plan import Job, Plan
    from dcpg.sweep.view import SweepView

MakeEnv = Callable[[int, int], Any]  # (num_envs, seed) -> Gymnasium vector environment
Show = Callable[[str], None]  # prints a line of progress


def _nothing(text: str) -> None: ...


# -- training


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
    observer: RunObserver | None = None,
) -> Run:
    """Train a method on a Procgen game, or on your own environment (`env`, and `test_env` with unseen levels).

    Without `out` the run is written to runs/GAME-METHOD-SEED. `init` is a run whose newest weights it starts from.
    """
    if (game is None) == (env is None):
        raise BadInput("Give either game=... (Procgen) or env=... (a function (num_envs, seed) -> vector environment).")
    name = game if game is not None else OWN + getattr(env, "__name__", "env").strip("<>")
    config = resolve(method, name, preset=preset, steps=steps, seed=seed, settings=settings)
    directory = Path(out) if out is not None else Path("runs") / f"{name.removeprefix(OWN)}-{method}-{seed}"
    return starting.start(config, directory, _maker(env, test_env), observer, Path(init) if init is not None else None)


def resume(
    run: Run | str | Path,
    *,
    steps: int | None = None,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
    observer: RunObserver | None = None,
) -> Run:
    """Go on exactly where a run stopped; with `steps`, to another end."""
    return starting.resume(_directory(run), steps, _maker(env, test_env), observer)


# -- a trained agent


def load(run: Run | str | Path, at: int | None = None, *, env: MakeEnv | None = None) -> Agent:
    """The trained agent: `.act(observation, greedy=False)` takes one observation or a batch.

    `at` chooses the milestone at a number of steps, or the untrained agent (0), instead of the newest weights.
    """
    return load_agent(_directory(run), at, _maker(env))


def evaluate(
    run: Run | str | Path,
    *,
    levels: str = "test",
    episodes: int | None = None,
    greedy: bool = False,
    at: int | None = None,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
    show: Show = _nothing,
) -> dict[str, Any]:
    """Play on training levels, unseen levels, or each level of a list such as "0-19,120" exactly once."""
    from dcpg.runs.evaluate import evaluate_agent, level_range
    from dcpg.storage.rows import SPLITS

    maker = _maker(env, test_env)
    agent = load_agent(_directory(run), at, maker)
    if show is not _nothing:
        _show_other_pictures(_directory(run), show)
        count = (episodes or agent.config.evaluation.episodes) if levels in SPLITS else len(level_range(levels))
        show(_duration_of(agent, count))
    return evaluate_agent(agent, levels, episodes, greedy, maker)


def _show_other_pictures(directory: Path, show: Show) -> None:
    written = read_written(RunDirectory(directory))
    other = other_library(written)
    if other is not None:
        show(
            f"Procgen draws {written.config.game} otherwise here ({other['library']}) than where this agent was "
            f"trained ({written.libraries[-1]['library']})."
        )


@dataclass(frozen=True)
class Recording:
    """A video, and the episodes in it: one per level."""

    video: Path
    levels: list[int]
    returns: list[float]
    lengths: list[int]


def record(
    run: Run | str | Path,
    *,
    levels: str = "test",
    at: int | None = None,
    out: str | Path | None = None,
    show: Show = _nothing,
) -> Recording:
    """Record a video of a run's agent, by default DIR/replay.mp4, on four or on up to nine chosen levels."""
    need("video", "A video")
    from dcpg.runs import video
    from dcpg.runs.evaluate import recorded_levels

    target = Path(out) if out is not None else _directory(run) / "replay.mp4"
    agent = load_agent(_directory(run), at)
    video.check_target(target)
    chosen = recorded_levels(agent, levels)
    if show is not _nothing:
        _show_other_pictures(_directory(run), show)
        show(_duration_of(agent, len(chosen)))
    played = video.record(agent, chosen, target)
    return Recording(target, chosen, played.returns, played.lengths)


def export(
    run: Run | str | Path, *, out: str | Path | None = None, at: int | None = None, show: Show = _nothing
) -> Path:
    """Write a run's agent as a folder to publish, by default DIR/export; returns the folder."""
    from dcpg.runs.export import write

    return write(_directory(run), Path(out) if out is not None else None, at, show)


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
    show: Show = _nothing,
) -> dict[str, Any]:
    """The paper's analyses: "stiffness", "values", "ood-actions" and "levels"; written to the run's folder analysis."""
    from dcpg.analysis.analyse import analyse as measure

    return measure(_directory(run), analysis, states, levels, episodes, at, _maker(env, test_env), show=show)


# -- many runs


def report(
    *directories: Run | str | Path, out: str | Path = "report", names: Sequence[str] = (), ranges: str = "rliable"
) -> Report:
    """Write the paper's tables and figures, and a page, from runs; with `names`, only those tables and figures.

    `ranges` are the lowest and highest returns of min-max normalised scores: of rliable or of the procgen paper.
    """
    from dcpg.report.write import write_report

    return write_report([_directory(run) for run in directories], Path(out), names, _ranges(ranges))


def watch_report(
    *directories: Run | str | Path, out: str | Path = "report", ranges: str = "rliable", port: int = 8750
) -> None:
    """Serve the page of a report on 127.0.0.1, and write it anew while runs are training, until Ctrl-C."""
    from dcpg.report.serve import serve_report
    from dcpg.report.write import write_report
    from dcpg.runs.records import Cache

    need("report", "The page")
    tops, folder, chosen = [_directory(run) for run in directories], Path(out), _ranges(ranges)
    cache: Cache = {}
    serve_report(tops, folder, port, lambda draw: write_report(tops, folder, (), chosen, draw, cache))


@dataclass(frozen=True)
class Sweep:
    """A sweep's directory, and what became of its runs."""

    directory: Path
    view: SweepView


def sweep(
    plan: str | Plan,
    *,
    out: str | Path | None = None,
    engine: str = "local",
    address: str | None = None,
    settings: Mapping[str, Any] | None = None,
    retry: bool = False,
    observer: SweepObserver | None = None,
) -> Sweep:
    """Train every run of a sweep: a TOML file, the name of a sweep that comes with the package, or a plan.

    Runs that are done are not run again, others go on where they were. `engine` is "local", or "ray" for a Ray cluster:
    the one at `address`, or one on this machine. `retry` also tries runs again that were given up.
    """
    from dcpg.sweep.driver import Driver, SilentSweepObserver, check_tools
    from dcpg.sweep.local import LocalEngine
    from dcpg.sweep.plan import read

    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise BadInput("--address goes with --engine ray.")
    found = read(plan, settings) if isinstance(plan, str) else plan
    root = Path(out) if out is not None else Path("sweeps") / found.name
    words = ["dcpg", "sweep", plan if isinstance(plan, str) else found.name]
    words += ["--engine", engine] if engine != "local" else []
    words += [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
    words += ["--address", address] if address is not None else []
    words += ["--out", str(out)] if out is not None else []
    check_tools(found.jobs, engine)
    driver = Driver(found, root, observer or SilentSweepObserver())

    def make_engine(jobs: Sequence[Job]) -> Engine:
        if engine == "local":
            return LocalEngine(jobs)
        from dcpg.sweep.ray.engine import RayEngine

        return RayEngine(root.absolute(), jobs, address)

    return Sweep(root, driver.run(make_engine, shlex.join(words), retry))


def _maker(env: MakeEnv | None, test_env: MakeEnv | None = None) -> EnvMaker | None:
    return EnvMaker(env, test_env) if env is not None else None


def _directory(run: Run | str | Path) -> Path:
    return run.directory if isinstance(run, Run) else Path(run)


def _duration_of(agent: Agent, episodes: int) -> str:
    from dcpg.machine.estimate import playing
    from dcpg.text import duration

    return f"{episodes} episodes on this machine: about {duration(playing(agent.actor, agent.shape, episodes))}."


def _ranges(name: str) -> Mapping[str, tuple[float, float]]:
    from dcpg.report.statistics import PROCGEN_RANGES, RANGES

    found = {"rliable": RANGES, "procgen": PROCGEN_RANGES}
    if name not in found:
        raise unknown("ranges", name, found)
    return found[name]
