"""Commands that train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcpg.cli.options import Directory, MethodName, Preset, Set, app, parse_settings
from dcpg.torchrun import is_first, processes

if TYPE_CHECKING:
    from dcpg.config.schema import Config


@app.command()
def train(
    method: MethodName,
    game: Annotated[str, typer.Option(help="A Procgen game; `dcpg games` lists them.")],
    steps: Annotated[
        int | None, typer.Option(help="Environment steps, floored to whole rollouts. (default: the preset's)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every random choice: two runs with one seed are identical.")] = 0,
    preset: Preset = "paper",
    out: Annotated[Path | None, typer.Option(help="Where the run is written. (default: runs/GAME-METHOD-SEED)")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. (default: cpu)")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16. (default: fp32)")] = None,
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the encoders with torch.compile.")] = False,
    init: Annotated[
        Path | None, typer.Option(help="Start from the weights of another run's newest checkpoint.")
    ] = None,
    settings: Set = None,
) -> None:
    """Train a method on a game.

    Trains on 200 levels, evaluates on them and on unseen levels, and can be stopped (Ctrl-C) and resumed exactly.

    Example:  dcpg train ddcpg --game starpilot --preset laptop --seed 1 --set algorithm.N_pi=16
    """
    from dcpg.api import default_directory
    from dcpg.cli.display import display
    from dcpg.config.build import known_spaces
    from dcpg.config.resolve import resolve
    from dcpg.machine.needs import check
    from dcpg.training.start import start

    given = parse_settings(settings)
    for name, value in (
        ("machine.device", device),
        ("machine.precision", precision),
        ("machine.compile", compile_ or None),
    ):
        if value is not None:
            given[name] = value
    c = resolve(method, game, preset=preset, steps=steps, seed=seed, settings=given)
    directory = out if out is not None else default_directory(game, method, seed)
    if is_first():
        check(c, known_spaces(c), directory)
        announce(c, c.rollouts)
    run = start(c, directory, None, display(), init)
    if is_first():
        conclude(run.directory, run.summary)


@app.command()
def resume(
    directory: Directory,
    steps: Annotated[int | None, typer.Option(help="Go on to so many steps in all, also past a run's end.")] = None,
) -> None:
    """Go on exactly where a run stopped, as if it had never stopped."""
    import dataclasses

    from dcpg.cli.display import display
    from dcpg.config.written import from_json
    from dcpg.storage.rows import read_rows
    from dcpg.storage.rundir import RunDirectory
    from dcpg.training.start import resume as go_on

    run = RunDirectory(directory)
    c = from_json(run.read_config(), run.config)
    c = dataclasses.replace(c, steps=steps) if steps is not None else c
    done = len(read_rows(run.metrics.path))
    if is_first():
        announce(c, max(c.rollouts - done, 0))
    result = go_on(directory, steps, None, display())
    if is_first():
        conclude(result.directory, result.summary)


def announce(c: Config, rollouts: int) -> None:
    """Say what a run will take before it starts."""
    from dcpg.config.build import known_spaces
    from dcpg.machine.estimate import training
    from dcpg.machine.needs import needs
    from dcpg.text import duration

    known = known_spaces(c)
    if known is None or rollouts == 0:
        return
    print(f"This run needs {needs(c, known).sentence()}.")
    steps, seconds = rollouts * c.rollout_size, training(c, known, rollouts) / processes()
    print(f"{steps:,} steps ({rollouts} rollouts of {c.rollout_size}) on this machine: about {duration(seconds)}.")
    if seconds > 86400 and c.preset == "paper":
        print("For a result in minutes: --preset laptop. This run can be stopped and resumed at any time.")


def conclude(directory: Path, summary: dict[str, Any]) -> None:
    """Say what came out and where it is."""
    from dcpg.runs.curves import curves
    from dcpg.storage.rundir import RunDirectory

    try:
        picture = f"Curves: {curves(RunDirectory(directory))}   "
    except OSError as error:
        picture = f"(The curves could not be drawn: {error}.)   "
    asked = summary["steps_asked"]
    floored = "" if asked == summary["steps"] else f" ({asked:,} asked for, floored to whole rollouts)"
    print(f"Finished: {summary['steps']:,} steps{floored}.")
    print(f"Return on training levels {summary['train_return']:.2f}, on unseen levels {summary['test_return']:.2f}.")
    print(f"Run: {directory}   {picture}Next: dcpg record {directory}")
