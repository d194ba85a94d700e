"""`dcpg train` and `dcpg resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcpg.cli.options import Directory, MethodName, Preset, Set, app, parse_settings
from dcpg.errors import BadInput
from dcpg.torchrun import is_first

if TYPE_CHECKING:
    from dcpg.training.start import Run


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
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:N; auto is cuda if torch has it. (default: auto)")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="auto, fp32 or bf16; auto is bf16 with --preset laptop where the device has it. (default: auto)"
        ),
    ] = None,
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
    from dcpg import api
    from dcpg.cli.display import display

    given = parse_settings(settings)
    options = {"machine.device": device, "machine.precision": precision, "machine.compile": compile_ or None}
    given |= {name: value for name, value in options.items() if value is not None}
    run = api.train(
        method, game, preset=preset, steps=steps, seed=seed, out=out, init=init, settings=given, observer=display()
    )
    if is_first():
        conclude(run)


@app.command()
def resume(
    directory: Directory,
    steps: Annotated[
        int | None, typer.Option(help="Train to this number of steps in all, also past the run's end.")
    ] = None,
) -> None:
    """Go on exactly where a run stopped, as if it had never stopped."""
    from dcpg import api
    from dcpg.cli.display import display

    run = api.resume(directory, steps=steps, observer=display())
    if is_first():
        conclude(run)


def conclude(run: Run) -> None:
    """Print what came out of a run and where it is."""
    from dcpg.runs.curves import curves
    from dcpg.storage.rundir import RunDirectory

    directory, summary = run.directory, run.summary
    try:
        picture = f"Curves: {curves(RunDirectory(directory))}   "
    except (OSError, BadInput) as error:
        picture = f"(curves.png was left out: {error})   "
    asked = summary["steps_asked"]
    floored = "" if asked == summary["steps"] else f" ({asked:,} asked for, floored to whole rollouts)"
    print(f"Finished: {summary['steps']:,} steps{floored}.")
    print(f"Return on training levels {summary['train_return']:.2f}, on unseen levels {summary['test_return']:.2f}.")
    print(f"Run: {directory}   {picture}Next: dcpg record {directory}")
