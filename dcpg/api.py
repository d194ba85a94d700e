"""What the command line can do, as Python calls: `dcpg.train`, `dcpg.evaluate`, `dcpg.api.report` and the others."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpg.config.environments import EnvMaker, MakeEnv, find, maker_for
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN
from dcpg.config.written import Written, other_library, read_written
from dcpg.errors import BadInput, unknown
from dcpg.extras import need
from dcpg.runs.agent import Agent, load_agent
from dcpg.runs.run import RunFiles
from dcpg.storage.rundir import RunDirectory
from dcpg.text import for_audience, say
from dcpg.torchrun import is_first
from dcpg.training import start as starting
from dcpg.training.observer import Observer, RunObserver, SilentObserver, Together
from dcpg.training.stop import spare_children

if TYPE_CHECKING:
    from dcpg.analysis.many import Analysed
    from dcpg.report.write import Report
    from dcpg.runs.publish import Published
    from dcpg.sweep.driver import SweepObserver
    from dcpg.sweep.engine import Engine
    from dcpg.sweep.plan import Job, Plan
    from dcpg.sweep.view import SweepView

__all__ = [
    "Agent", "MakeEnv", "Observer", "Recording", "Run", "Sweep", "analyse", "analyse_all", "evaluate", "export", "load",
    "publish", "record", "report", "resume", "sweep", "train", "watch_report",
]  # fmt: skip

Env = MakeEnv | str  # a function, or text as --env takes it
Show = Callable[[str], None]  # prints a line of progress


def _nothing(text: str) -> None: ...


class Run(RunFiles):
    """A run on disk: what `dcpg.train` returns, or `dcpg.Run("runs/first")` for one that was made before.

    Args:
        directory: The run's directory.
        env: The environment that it was trained on, if it is your own; `record` and `dcpg.evaluate` then need none.
        test_env: The one with unseen levels.

    Examples:
        >>> run = dcpg.Run("runs/first")
        >>> run.summary["test_return"]
        >>> run.metrics()["policy.J_pi"]
        >>> run.evaluations()["test_return"]
        >>> run.record(levels="test").video
    """

    def __init__(self, directory: str | Path, env: Env | None = None, test_env: Env | None = None) -> None:
        super().__init__(directory)
        self.env, self.test_env = env, test_env
        self.no_curves = ""  # why curves.png was not drawn at the end of training

    def record(self, *, levels: str = "test", at: int | None = None, out: str | Path | None = None) -> Recording:
        """Record a video of the run's agent, by default to `replay.mp4` in its directory; see `dcpg.record`."""
        return record(self, levels=levels, at=at, out=out)


# -- training


def train(
    method: str,
    game: str | None = None,
    *,
    env: Env | None = None,
    test_env: Env | None = None,
    name: str | None = None,
    preset: str = "paper",
    steps: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    init: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    observer: RunObserver | None = None,
    progress: bool = True,
) -> Run:
    """Train a method on a Procgen game or on your own environment, evaluate it on the way, and write it to a directory.

    A run can be stopped with Ctrl-C and continued exactly with `dcpg.resume`. At its end it has its rows, its weights
    and, if matplotlib is installed, the picture `curves.png`.

    Args:
        method: The name of a method: one of the package's fifteen, which `dcpg methods` lists, or your own, declared
            with `@dcpg.methods.method` in a file that you have imported.
        game: A Procgen game, such as "starpilot".
        env: Your own environment, instead of a game: a function (num_envs, seed) that returns a Gymnasium vector
            environment, or text: "CartPole-v1", "FILE.py:make" or "module:make".
        test_env: The same with levels that are not used in training; without it only training levels are evaluated.
        name: A name for your own environment, for directories and reports. By default it follows from `env`.
        preset: Sizes: "paper" (25 million steps, days on a CPU), "laptop" (minutes) or "tiny" (seconds).
        steps: Environment steps, floored to whole rollouts; by default the preset's.
        seed: Decides every random choice: two runs with one seed are identical.
        out: The directory of the run; by default runs/GAME-METHOD-SEED.
        init: A run whose newest weights it starts from.
        settings: Any other settings by their dotted names; `dcpg config METHOD` lists them.
        observer: Is told what happens while the run trains; derive it from `dcpg.Observer`.
        progress: Show how far the run is: a live display on a terminal, plain lines elsewhere.

    Returns:
        The run, with `summary`, `metrics()`, `evaluations()`, `curves()` and `record()`.

    Raises:
        BadInput: Something that was given is wrong; the message says what, and nothing was written.

    Examples:
        >>> run = dcpg.train("dcpg", game="starpilot", preset="laptop")
        >>> run = dcpg.train("ddcpg", "bigfish", preset="tiny", settings={"algorithm.N_pi": 4, "levels.count": 50})
        >>> run = dcpg.train("ppo", env="CartPole-v1", preset="tiny", steps=50_000)
    """
    if (game is None) == (env is None):
        raise BadInput(
            for_audience(
                "Give either --game (Procgen) or --env (your own environment, such as CartPole-v1 or FILE.py:make).",
                "Give either game=... (Procgen) or env=... (a function (num_envs, seed) -> vector environment).",
            )
        )
    spare_children()
    here = Path.cwd()  # the user's environment may change it
    maker = find(env, test_env, name) if env is not None or test_env is not None or name is not None else None
    played = game if maker is None else OWN + maker.name
    config = resolve(method, str(played), preset=preset, steps=steps, seed=seed, settings=settings)
    asked = Path(out) if out is not None else Path("runs") / f"{(maker.name if maker else game)}-{method}-{seed}"
    directory, told = here / asked if maker else asked, _observers(observer, progress)
    first = None if init is None else here / init if maker else Path(init)
    starting.start(config, directory, maker, told, first)
    return _finished(Run(_as_asked(asked, directory), env, test_env))


def resume(
    run: Run | str | Path,
    *,
    steps: int | None = None,
    env: Env | None = None,
    test_env: Env | None = None,
    observer: RunObserver | None = None,
    progress: bool = True,
) -> Run:
    """Go on exactly where a run stopped, as if it had never stopped.

    Args:
        run: A run or its directory.
        steps: Train to this number of steps in all, also past the run's end.
        env: Your own environment, if the run was trained on one that is not a registered Gymnasium id.
        test_env: The one with unseen levels, if the run had one.
        observer: As in `dcpg.train`.
        progress: As in `dcpg.train`.

    Returns:
        The run.
    """
    spare_children()
    asked = _directory(run)
    run, env, test_env = _fixed(run, env, test_env)
    written, maker = _maker(run, "resume", env, test_env)
    if written.environment is not None and written.environment.ids[1] is not None and maker and maker.test is None:
        raise BadInput(
            f"{run} was also evaluated on unseen levels; name them too: {for_audience('--test-env', 'test_env=')}."
        )
    starting.resume(run, steps, maker, _observers(observer, progress))
    return _finished(Run(_as_asked(asked, run), env, test_env))


def _observers(observer: RunObserver | None, progress: bool) -> RunObserver:
    from dcpg.training.display import display

    return Together([*([display()] if progress else [SilentObserver()]), *([observer] if observer is not None else [])])


def _finished(run: Run) -> Run:
    """Draw the curves of a run that has just ended."""
    if is_first():
        try:
            run.curves()
        except (OSError, BadInput) as error:
            run.no_curves = str(error)
    return run


# -- a trained agent


def load(run: Run | str | Path, at: int | None = None, *, env: Env | None = None) -> Agent:
    """Load a trained agent, from a run or from a folder that `dcpg.export` wrote. No code from it is executed.

    Args:
        run: A run or its directory.
        at: The steps of a milestone, or 0 for the untrained agent, instead of the newest weights.
        env: Only for runs of releases before 0.3 on your own environment, which do not say what it looks like.

    Returns:
        The agent: `.act(observation, greedy=False)` takes one observation or a batch.

    Examples:
        >>> agent = dcpg.load("runs/first")
        >>> agent.act(np.zeros((4, *agent.shape), agent.spaces.dtype), greedy=True)
    """
    maker = find(env) if env is not None else None
    return load_agent(_directory(run), at, maker)


def evaluate(
    run: Run | str | Path,
    *,
    levels: str = "test",
    episodes: int | None = None,
    greedy: bool = False,
    at: int | None = None,
    env: Env | None = None,
    test_env: Env | None = None,
    show: Show = _nothing,
) -> dict[str, Any]:
    """Play a run's agent. On a finished run, "train" and "test" repeat its last evaluation exactly.

    Args:
        run: A run or its directory.
        levels: "train", "test" (unseen levels) or, on Procgen, level seeds such as "0-19,120", each played once.
        episodes: Their number for "train" and "test"; by default that of the run's own evaluations, 100.
        greedy: Take the most likely action instead of sampling.
        at: The steps of a milestone, or 0 for the untrained agent, instead of the newest weights.
        env: Your own environment, if the run was trained on one that is not a registered Gymnasium id.
        test_env: The one with unseen levels.
        show: Is called with lines about how long it takes.

    Returns:
        "return" (the mean), "returns", "lengths", "level_seeds", "steps", and "predicted_value", "true_value" and
        "true_value_own_gamma" of the initial states.
    """
    from dcpg.runs.evaluate import check_episodes, evaluate_agent, level_range
    from dcpg.storage.rows import SPLITS

    check_episodes(episodes)
    run, env, test_env = _fixed(run, env, test_env)
    written, maker = _maker(run, "eval", env, test_env)
    agent = load_agent(run, at, maker)
    if show is not _nothing:
        _show_differences(written, maker, show)
        count = (episodes or agent.config.episodes_after(agent.steps)) if levels in SPLITS else len(level_range(levels))
        show(_duration_of(agent, count))
    return evaluate_agent(agent, levels, episodes, greedy, maker)


def _show_differences(written: Written, maker: EnvMaker | None, show: Show) -> None:
    """Say if an agent is played otherwise than it was trained."""
    before = written.environment
    if maker is not None and maker.test_id is None and before is not None:
        before = before.training_alone()
    if maker is not None and before is not None and (before.changed(maker) or not before.is_same(maker)):
        changed = " as it was then" if before.is_same(maker) else ""
        show(f"This agent was trained on {before.ids[0]}{changed}; now it plays {maker.id}.")
    other = other_library(written)
    if other is not None:
        show(
            f"Procgen draws {written.config.game} otherwise here ({other['library']}) than where this agent was "
            f"trained ({written.libraries[-1]['library']})."
        )


@dataclass(frozen=True)
class Recording:
    """A video, and the episodes in it: one per level.

    Args:
        video: The file.
        levels: The level seed of each episode; -1 where an environment does not tell.
        returns: The return of each episode.
        lengths: The steps of each episode.
    """

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
    env: Env | None = None,
    test_env: Env | None = None,
    show: Show = _nothing,
) -> Recording:
    """Record a video of a run's agent, with its value and its policy beside the game.

    Your own environment must draw itself: its `render_mode` is "rgb_array" when a video is made. A function
    make(num_envs, seed, render_mode=None) is asked for that.

    Args:
        run: A run or its directory.
        levels: "train" or "test" (unseen levels), four of them; or, on Procgen, up to nine level seeds such as
            "3,17,120-122".
        at: The steps of a milestone, or 0 for the untrained agent, instead of the newest weights.
        out: FILE.mp4 or FILE.gif; by default `replay.mp4` in the run's directory.
        env: Your own environment, if the run was trained on one that is not a registered Gymnasium id.
        test_env: The one with unseen levels.
        show: Is called with lines about how long it takes.

    Returns:
        The video and its episodes.
    """
    need("video", "A video")
    from dcpg.runs import video
    from dcpg.runs.evaluate import environments_to_record

    run, env, test_env = _fixed(run, env, test_env)
    target = run / "replay.mp4" if out is None else Path(out) if env is None else Path(out).absolute()
    written, maker = _maker(run, "record", env, test_env)
    agent = load_agent(run, at, maker)
    video.check_target(target)
    environments = environments_to_record(agent, levels, maker)
    if show is not _nothing:
        _show_differences(written, maker, show)
        show(_duration_of(agent, environments.num_envs))
    played = video.record(agent, environments, target)
    return Recording(target, played.levels, played.returns, played.lengths)


def export(
    run: Run | str | Path, *, out: str | Path | None = None, at: int | None = None, show: Show = _nothing
) -> Path:
    """Write a run's agent as a folder to publish: weights, configuration, model card and, on Procgen, a video.

    Args:
        run: A run or its directory.
        out: The folder; by default `export` in the run's directory.
        at: The steps of a milestone instead of the newest weights.
        show: Is called with lines of progress.

    Returns:
        The folder, which `dcpg.load` opens.
    """
    from dcpg.runs.export import write

    return write(_directory(run), Path(out) if out is not None else None, at, show)


def publish(*directories: str | Path, out: str | Path, rows: int | None = None, show: Show = _nothing) -> Published:
    """Copy what a report needs of every finished run at or below the directories, small enough for a repository.

    Args:
        directories: Runs, sweeps, or folders with runs.
        out: The folder, with one folder for each run in it. Rows that were published there before are replaced.
        rows: About how many rows of metrics.jsonl and timing.jsonl to keep of each run; by default 50.
        show: Is called with lines of progress.

    Returns:
        The folder, its runs, and the runs that were left out, with the reason.
    """
    from dcpg.runs.publish import ROWS, publish

    return publish([Path(one) for one in directories], Path(out), ROWS if rows is None else rows, show)


def analyse(
    run: Run | str | Path,
    analysis: str,
    *,
    states: int | None = None,
    burn_in: int | None = None,
    levels: int | None = None,
    episodes: int | None = None,
    at: int | None = None,
    env: Env | None = None,
    test_env: Env | None = None,
    show: Show = _nothing,
) -> dict[str, Any]:
    """Analyse what a run has learnt, as in the paper. The result and its picture are kept in the run's folder analysis.

    Args:
        run: A run or its directory.
        analysis: "stiffness", "values", "ood-actions" or "levels".
        states: For stiffness and ood-actions, the number of states in fresh rollouts.
        burn_in: For these two, the steps that each environment plays before the first of these states.
        levels: For levels, the number of training levels, at most, and of unseen ones.
        episodes: For levels, episodes per level.
        at: The steps of a milestone, or 0 for the untrained agent, instead of the newest weights.
        env: Your own environment, if the run was trained on one that is not a registered Gymnasium id.
        test_env: The one with unseen levels.
        show: Is called with lines of progress.

    Returns:
        The numbers of the analysis.
    """
    from dcpg.analysis.analyse import analyse as measure

    given = {"states": states, "burn_in": burn_in, "levels": levels, "episodes": episodes}
    run, env, test_env = _fixed(run, env, test_env)
    return measure(run, analysis, given, at, _analysed_on(run, analysis, env, test_env), show)


# -- many runs


def analyse_all(
    *directories: Run | str | Path,
    analysis: str,
    states: int | None = None,
    burn_in: int | None = None,
    levels: int | None = None,
    episodes: int | None = None,
    at: int | None = None,
    again: bool = False,
    env: Env | None = None,
    test_env: Env | None = None,
    tell: Callable[[int, int, Analysed], None] = lambda number, total, run: None,
) -> list[Analysed]:
    """Analyse many runs, one after the other, as `dcpg.analyse` does one.

    Args:
        directories: Runs, or folders with runs in them, such as the directory of a sweep.
        analysis: "stiffness", "values", "ood-actions" or "levels".
        states: For stiffness and ood-actions, the number of states in fresh rollouts.
        burn_in: For these two, the steps that each environment plays before the first of these states.
        levels: For levels, the number of training levels, at most, and of unseen ones.
        episodes: For levels, episodes per level.
        at: The steps of a milestone, or 0 for the untrained agent, instead of the newest weights.
        again: Also analyse runs that have the same analysis of the same weights already.
        env: Your own environment, if the runs were trained on one that is not a registered Gymnasium id.
        test_env: The one with unseen levels.
        tell: Is called after each run, with its number from 1, how many there are, and what became of it.

    Returns:
        What became of each run: analysed, there already, left out because the analysis is not for it, or failed.
    """
    from dcpg.analysis.many import analyse_each
    from dcpg.runs.folders import run_directories

    paths, problems = run_directories([_fixed(run, env, test_env)[0] for run in directories])
    for problem in problems:
        say(f"warning: {problem.path}: {problem.text}", to=sys.stderr)
    given = {"states": states, "burn_in": burn_in, "levels": levels, "episodes": episodes}
    found: list[Analysed] = []

    def maker_of(path: Path) -> EnvMaker | None:
        return _analysed_on(path, analysis, env, test_env)

    for number, one in enumerate(analyse_each(paths, analysis, given, maker_of, at, again), 1):
        tell(number, len(paths), one)
        found.append(one)
    return found


def report(
    *directories: Run | str | Path,
    out: str | Path = "report",
    names: Sequence[str] = (),
    ranges: str = "rliable",
    bands: bool = False,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Report:
    """Write the paper's tables and figures, and a page, from runs.

    Args:
        directories: Runs, or folders with runs in them. Methods and environments of your own need not be loaded.
        out: The folder to write.
        names: Only these tables and figures, such as "table1", "figure4" or "claims", and no page.
        ranges: The lowest and highest returns of min-max normalised scores in easy mode: of "rliable" or of the
            "procgen" paper. Hard mode has its own.
        bands: Show deviations over seeds in the figures of values too.
        tell: Called with what is being made, and how much of how much is done, such as "reading runs", 80, 2400.

    Returns:
        The files that were written, and what was found on the way.
    """
    from dcpg.report.write import write_report

    tops = [_directory(run) for run in directories]
    return write_report(tops, Path(out), names, _ranges(ranges), bands=bands, tell=tell)


def watch_report(
    *directories: Run | str | Path, out: str | Path = "report", ranges: str = "rliable", port: int = 8750
) -> None:
    """Serve the page of a report on 127.0.0.1, and write it anew while runs are training, until Ctrl-C.

    Args:
        directories: Runs, or folders with runs in them.
        out: The folder to write.
        ranges: As in `report`.
        port: The port; 0 for a free one.
    """
    from dcpg.report.serve import serve_report
    from dcpg.report.write import write_report
    from dcpg.runs.collection import Cache

    need("report", "The page")
    tops, folder, chosen = [_directory(run) for run in directories], Path(out), _ranges(ranges)
    cache: Cache = {}
    serve_report(tops, folder, port, lambda draw: write_report(tops, folder, (), chosen, draw, cache))


@dataclass(frozen=True)
class Sweep:
    """A sweep's directory, and what became of its runs.

    Args:
        directory: Where the sweep is.
        view: Its runs as they are at the end.
    """

    directory: Path
    view: SweepView


def sweep(
    plan: str | Plan,
    *,
    out: str | Path | None = None,
    engine: str = "local",
    address: str | None = None,
    settings: Mapping[str, Any] | None = None,
    env: str | None = None,
    test_env: str | None = None,
    name: str | None = None,
    retry: bool = False,
    observer: SweepObserver | None = None,
) -> Sweep:
    """Train every run of a sweep. Runs that are done are not run again, others go on where they were.

    Args:
        plan: A TOML file, the name of a sweep that comes with the package, or a plan.
        out: The directory; by default sweeps/NAME.
        engine: "local", or "ray" for a Ray cluster.
        address: With engine="ray", the address of a cluster; by default one is started on this machine.
        settings: Take precedence over the file's [set].
        env: Your own environment as text, "CartPole-v1" or "FILE.py:make", instead of the file's games or envs.
        test_env: The one with unseen levels.
        name: A name for it.
        retry: Also try runs again that were given up.
        observer: Is told how far the sweep is.

    Returns:
        The sweep, when all of its runs are done.

    Raises:
        SweepIncomplete: Some runs failed; the others are done.
    """
    from dcpg.sweep.driver import Driver, SilentSweepObserver, check_tools
    from dcpg.sweep.local import LocalEngine
    from dcpg.sweep.plan import read

    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise BadInput(for_audience("--address goes with --engine ray.", 'address= goes with engine="ray".'))
    own = {"env": env, "test_env": test_env, "name": name}
    found = read(plan, settings, own) if isinstance(plan, str) else plan
    root = Path(out) if out is not None else Path("sweeps") / found.name
    words = ["dcpg", "sweep", plan if isinstance(plan, str) else found.name]
    words += ["--engine", engine] if engine != "local" else []
    words += [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
    words += [word for name, value in own.items() if value for word in (f"--{name.replace('_', '-')}", value)]
    words += [word for source in found.plugins for word in ("--plugin", source)]
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


# -- what several calls share


def _fixed(run: Run | str | Path, env: Env | None, test_env: Env | None) -> tuple[Path, Env | None, Env | None]:
    """The directory of a run, and the environments that were given, or that it remembers from training in this process.

    With an environment of the user's own the directory is absolute: that code may change the working directory.
    """
    if isinstance(run, Run):
        env, test_env = (run.env if env is None else env), (run.test_env if test_env is None else test_env)
    return _directory(run) if env is None else _directory(run).absolute(), env, test_env


def _as_asked(asked: Path, directory: Path) -> Path:
    """A directory as the user named it, if that still leads there."""
    with contextlib.suppress(OSError):  # the current directory may be gone
        return asked if asked.absolute() == directory.absolute() else directory
    return directory


def _maker(run: Path, verb: str, env: Env | None, test_env: Env | None) -> tuple[Written, EnvMaker | None]:
    written = read_written(RunDirectory(run))
    return written, maker_for(written.config.game, written.environment, env, test_env, f"{verb} {run}")


def _analysed_on(run: Path, analysis: str, env: Env | None, test_env: Env | None) -> EnvMaker | None:
    return None if analysis == "values" else _maker(run, f"analyse {analysis}", env, test_env)[1]


def _directory(run: Run | str | Path) -> Path:
    return run.directory if isinstance(run, RunFiles) else Path(run)


def _duration_of(agent: Agent, episodes: int) -> str:
    from dcpg.machine.estimate import playing
    from dcpg.text import counted, duration

    seconds = playing(agent.actor, agent.shape, episodes)
    return f"{counted(episodes, 'episode')} on this machine: about {duration(seconds)}."


def _ranges(name: str) -> Mapping[str, tuple[float, float]]:
    from dcpg.report.statistics import PROCGEN_RANGES, RANGES

    found = {"rliable": RANGES, "procgen": PROCGEN_RANGES}
    if name not in found:
        raise unknown("ranges", name, found)
    return found[name]
