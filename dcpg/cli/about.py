"""Commands that tell: methods, games, algorithms, settings, this machine."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcpg.cli.options import Json, MethodName, Plugin, Preset, Set, app, load_plugins, parse_settings
from dcpg.errors import BadInput, StorageFailed
from dcpg.text import counted, say

if TYPE_CHECKING:
    from dcpg.config.schema import Config


@app.command()
def methods(plugin: Plugin = None, as_json: Json = False) -> None:
    """List the methods and what each optimises in which phase, those of plugins too."""
    from dcpg.config.explain import table
    from dcpg.core.evaluation import PAPER_GAMMA
    from dcpg.methods.plugins import load_everything

    load_plugins(plugin)
    load_everything()
    rows = table()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        say(f"{row['name']:16s} {row['summary']}")
        if row["plugin"]:
            say(f"{'':16s}   from {row['plugin']}")
        for head, target in row["targets"].items():
            if target["gamma"] != PAPER_GAMMA:
                say(f"{'':16s}   discount of {head}: {target['gamma']}")
        if row["levels"] != "uniform":
            say(f"{'':16s}   levels: {row['levels']}")
        if row["augment"] != "none":
            say(f"{'':16s}   augmentation: {row['augment']}")
        for line in row["policy_phase"]:
            terms = " ".join([*(t for terms in line["before"].values() for t in terms), *line["terms"]])
            say(f"{'':16s}   policy phase, {line['epochs']} x tau: {terms}")
        for line in row["auxiliary_phase"]:
            N_pi = row["N_pi"]
            every = counted(N_pi, "rollout") if isinstance(N_pi, int) else f"{', '.join(map(str, N_pi))}, ... rollouts"
            say(f"{'':16s}   every {every}, {line['epochs']} x B: {' '.join(line['terms'])}")


@app.command()
def games(as_json: Json = False) -> None:
    """List the 16 games of Procgen."""
    from dcpg.envs.procgen import GAMES

    say(*([json.dumps(list(GAMES))] if as_json else GAMES))


@app.command()
def explain(
    method: MethodName,
    preset: Preset = "paper",
    settings: Set = None,
    plugin: Plugin = None,
    draw: Annotated[
        Path | None,
        typer.Option(help="Also draw its networks and what trains them, as the paper's Figure 1: a file NAME.svg."),
    ] = None,
) -> None:
    """Print Algorithm 1 filled in for a method: every line, term, equation, weight and source.

    Example:  dcpg explain ddcpg --draw ddcpg.svg
    """
    from dcpg.config.drawing import drawing
    from dcpg.config.explain import explain as text
    from dcpg.config.resolve import resolve

    load_plugins(plugin)
    found = resolve(method, "bigfish", preset=preset, settings=parse_settings(settings))
    if draw is not None and draw.suffix != ".svg":
        raise BadInput(f"--draw makes SVG; got {draw}. Give a name that ends in .svg.")
    say(*text(found).split("\n"))
    if draw is not None:
        _write(draw, drawing(found))
        say("", f"Drawn: {draw}")


@app.command()
def config(
    method: MethodName,
    preset: Preset = "paper",
    settings: Set = None,
    plugin: Plugin = None,
    paper: Annotated[bool, typer.Option("--paper", help="Show it as the paper's Tables 4 and 5 instead.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --paper: a folder for both tables as CSV, Markdown and LaTeX.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List every setting of a method: dotted name (for --set), value, and where the value comes from.

    Example:  dcpg config ppg --paper --out tables
    """
    from dcpg.config.command import written
    from dcpg.config.resolve import origins, resolve

    load_plugins(plugin)
    given = parse_settings(settings)
    if out is not None and not paper:
        raise BadInput("--out goes with --paper.")
    found = resolve(method, "bigfish", preset=preset, settings=given)
    if paper:
        _papers_tables(found, out)
        return
    rows = origins(found, given)
    rows = [row for row in rows if row[0] not in ("method", "game", "seed", "preset")]
    if as_json:
        print(json.dumps({name: {"value": value, "origin": origin} for name, value, origin in rows}, indent=2))
        return
    for name, value, origin in rows:
        say(f"{name:28s} {written(value):>14s}   {origin}")


def _papers_tables(config: Config, out: Path | None) -> None:
    from dcpg.config.hyperparameters import papers_tables

    for table in papers_tables(config):
        say(*table.markdown().split("\n"))
        texts = {"csv": table.csv(), "md": table.markdown(), "tex": table.latex()}
        for ending, text in texts.items() if out is not None else ():
            _write(Path(out or ".") / f"{table.name}.{ending}", text)


def _write(path: Path, text: str) -> None:
    from dcpg.storage.files import write_atomic

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written ({error.strerror}).") from None


@app.command()
def bench(
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to measure; may be given several times. (default: ppo ppg dcpg ddcpg)"),
    ] = None,
    preset: Preset = "paper",
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure peak memory with B full of real frames instead (minutes).")
    ] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. (default: auto)")] = None,
    settings: Set = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Measure what methods cost on this machine, at their true sizes, against its matrix-multiply rate.

    Each method takes about a minute in a process of its own, and another one in bfloat16 where the device has it.
    Leave the machine alone meanwhile.

    Example:  dcpg bench --method dcpg --set network.channels=32,64,64
    """
    from dcpg.tools.bench import DEFAULT_METHODS, shown
    from dcpg.tools.bench import bench as measure

    load_plugins(plugin)
    given = parse_settings(settings) | ({"machine.device": device} if device is not None else {})
    found = measure(method or DEFAULT_METHODS, preset, given, memory)
    say(*[json.dumps(found)] if as_json else shown(found).split("\n"))


@app.command()
def doctor(
    device: Annotated[
        str | None,
        typer.Option(help="Also compute a small stored case of every method on this device: are its numbers right?"),
    ] = None,
) -> None:
    """Check the installation: what is there, what is missing, what to do.

    Example:  dcpg doctor --device cuda
    """
    from dcpg.tools.doctor import checks, device_checks

    all_well = True
    for what, well, found in chain(checks(), device_checks(device) if device is not None else ()):
        say(f"{'ok ' if well else 'BAD'}  {what:22s} {found}")
        all_well &= well
    if not all_well:
        raise typer.Exit(1)
