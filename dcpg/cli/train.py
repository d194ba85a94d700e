"""`dcpg train` and `dcpg resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcpg.cli.options import (
    Directory,
    Env,
    EnvName,
    MethodName,
    Plugin,
    Preset,
    Set,
    TestEnv,
    app,
    load_plugins,
    parse_settings,
    steps_option,
)
from dcpg.text import say_last
from dcpg.torchrun import is_first

if TYPE_CHECKING:
    from dcpg.api import Run


@app.command()
def train(
    method: MethodName,
    game: Annotated[str | None, typer.Option(help="A Procgen game; `dcpg games` lists them.")] = None,
    env: Env = None,
    test_env: TestEnv = None,
    name: EnvName = None,
    steps: Annotated[
        int | None,
        steps_option("--steps", "Environment steps such as 1e6, floored to whole rollouts. (default: the preset's)"),
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
    plugin: Plugin = None,
) -> None:
    """Train a method on a Procgen game or on your own environment.

    On Procgen it trains on 200 levels and evaluates on them and on unseen levels. A run can be stopped (Ctrl-C) and
    resumed exactly.

    Examples:

    dcpg train ddcpg --game starpilot --preset laptop --seed 1 --set algorithm.N_pi=16

    dcpg train mine --plugin mine.py --game coinrun --preset tiny

    dcpg train ppo --env CartPole-v1 --preset tiny --steps 50000
    """
    from dcpg import api

    load_plugins(plugin)
    given = parse_settings(settings)
    options = {"machine.device": device, "machine.precision": precision, "machine.compile": compile_ or None}
    given |= {name: value for name, value in options.items() if value is not None}
    run = api.train(
        method, game, env=env, test_env=test_env, name=name, preset=preset, steps=steps, seed=seed, out=out, init=init,
        settings=given,
    )  # fmt: skip
    if is_first():
        conclude(run, plugin)


@app.command()
def resume(
    directory: Directory,
    steps: Annotated[
        int | None, steps_option("--steps", "Train to this number of steps in all, also past the run's end.")
    ] = None,
    env: Env = None,
    test_env: TestEnv = None,
    plugin: Plugin = None,
) -> None:
    """Go on exactly where a run stopped, as if it had never stopped.

    Your own methods and environments must be named again: nothing is imported because a run's files say so. Only a
    Gymnasium id that is registered already is used again.
    """
    from dcpg import api

    load_plugins(plugin)
    run = api.resume(directory, steps=steps, env=env, test_env=test_env)
    if is_first():
        conclude(run, plugin)


def conclude(run: Run, plugins: list[str] | None) -> None:
    """Print what came out of a run and where it is."""
    import shlex

    directory, summary = run.directory, run.summary
    picture = f"(curves.png was left out: {run.no_curves})" if run.no_curves else f"Curves: {directory / 'curves.png'}"
    asked = summary["steps_asked"]
    floored = "" if asked == summary["steps"] else f" ({asked:,} asked for, floored to whole rollouts)"
    unseen = summary["test_return"]
    words = ["dcpg", "record", str(directory)]
    for option, value in (("--env", run.env), ("--test-env", run.test_env)):
        words += [option, str(value)] if value is not None else []
    words += [word for source in plugins or [] for word in ("--plugin", source)]
    words += ["--levels", "train"] if unseen is None else []
    say_last(
        f"Finished: {summary['steps']:,} steps{floored}.",
        f"Return on training levels {summary['train_return']:.2f}"
        + (f", on unseen levels {unseen:.2f}." if unseen is not None else "."),
        f"Run: {directory}   {picture}   Next: {shlex.join(words)}",
    )
