"""The Python calls: `dcpg.train`, `dcpg.resume`, `dcpg.evaluate`, `dcpg.analyse`, `dcpg.load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dcpg.config.build import EnvMaker
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN
from dcpg.errors import BadInput
from dcpg.runs import agent as _agent
from dcpg.runs.agent import Agent
from dcpg.runs.evaluate import evaluate_agent
from dcpg.training import start as launch
from dcpg.training.observer import RunObserver
from dcpg.training.start import Run

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
    observer: RunObserver | None = None,
) -> Run:
    """Train a method on a Procgen game, or on an environment of your own (`env`, and `test_env` with unseen levels)."""
    if (game is None) == (env is None):
        raise BadInput("Give either game=... (Procgen) or env=... (a function (num_envs, seed) -> vector environment).")
    name = game if game is not None else OWN + getattr(env, "__name__", "env").strip("<>")
    config = resolve(method, name, preset=preset, steps=steps, seed=seed, settings=settings)
    maker = EnvMaker(env, test_env) if env is not None else None
    directory = Path(out) if out is not None else default_directory(name, method, seed)
    return launch.start(config, directory, maker, observer, Path(init) if init is not None else None)


def default_directory(game: str, method: str, seed: int) -> Path:
    """runs/GAME-METHOD-SEED."""
    return Path("runs") / f"{game.removeprefix(OWN)}-{method}-{seed}"


def resume(
    run: Run | str | Path,
    *,
    steps: int | None = None,
    env: MakeEnv | None = None,
    test_env: MakeEnv | None = None,
    observer: RunObserver | None = None,
) -> Run:
    """Go on exactly where a run stopped; with `steps`, to another end."""
    maker = EnvMaker(env, test_env) if env is not None else None
    return launch.resume(_directory(run), steps, maker, observer)


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
    from dcpg.analysis.analyse import analyse as measure

    maker = EnvMaker(env, test_env) if env is not None else None
    return measure(_directory(run), analysis, states, levels, episodes, at, maker)


def _directory(run: Run | str | Path) -> Path:
    return run.directory if isinstance(run, Run) else Path(run)
