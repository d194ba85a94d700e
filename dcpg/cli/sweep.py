"""The command `dcpg sweep`."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dcpg.cli.options import Env, EnvName, Json, Plugin, Set, TestEnv, app, load_plugins, parse_settings
from dcpg.errors import BadInput
from dcpg.text import counted, say, say_last
from dcpg.torchrun import processes


class EngineName(StrEnum):
    """The engines that carry out runs."""

    local = "local"
    ray = "ray"


@app.command()
def sweep(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE.toml|NAME | status DIR",
            help="The file of a sweep, or one of table1, ablations, regularisation, eta, stiffness, combinations and "
            "laptop; or `status` and the directory of a sweep.",
        ),
    ],
    engine: Annotated[
        EngineName, typer.Option(help="local: on this machine, without a server. ray: on a Ray cluster.")
    ] = EngineName.local,
    address: Annotated[
        str | None,
        typer.Option(help="With --engine ray: the address of an existing cluster. (default: start one here)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The directory of the sweep. (default: sweeps/NAME)")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what the sweep would take, and what exists already.")
    ] = False,
    settings: Set = None,
    env: Env = None,
    test_env: TestEnv = None,
    name: EnvName = None,
    plugin: Plugin = None,
    retry: Annotated[bool, typer.Option("--retry", help="Also retry the runs that were given up.")] = False,
    as_json: Json = False,
) -> None:
    """Train many runs: methods x games or environments x seeds x settings, from a small file.

    A sweep can be stopped (Ctrl-C), killed and started again at any time: finished runs are never repeated, and the
    others continue exactly where they were. A run that fails three times without progress is given up; the rest
    continues.

    Example:  dcpg sweep laptop      and meanwhile or afterwards:  dcpg sweep status sweeps/laptop
    """
    if processes() > 1:
        raise BadInput("A sweep starts its own processes; start it without torchrun.")
    if given[0] == "status":
        if len(given) != 2:
            raise BadInput("Name the sweep's directory, for example: dcpg sweep status sweeps/laptop")
        status(Path(given[1]), as_json)
        return
    if len(given) != 1:
        raise BadInput(f"One sweep at a time; got {' '.join(given)}.")
    if as_json:
        raise BadInput("--json goes with `dcpg sweep status DIR`.")
    from dcpg import api
    from dcpg.cli.sweep_display import ProbeDisplay, SweepDisplay
    from dcpg.sweep.dry_run import count_sweep, describe, describe_times, measure_speeds
    from dcpg.sweep.plan import read
    from dcpg.training.display import Screen

    load_plugins(plugin)
    options = parse_settings(settings)
    if dry_run:
        plan = read(given[0], options, {"env": env, "test_env": test_env, "name": name})
        root = out if out is not None else Path("sweeps") / plan.name
        counts = count_sweep(plan, root)
        say(*describe(plan, root, counts), flush=True)
        with ProbeDisplay(Screen(stderr=True)) as display:
            measured = measure_speeds(counts, display.next)
        say(*describe_times(measured))
        return
    done = api.sweep(
        given[0], out=out, engine=engine.value, address=address, settings=options, retry=retry,
        env=env, test_env=test_env, name=name, observer=SweepDisplay(Screen()),
    )  # fmt: skip
    runs = len(done.view.runs)
    say_last(
        f"{'The run is' if runs == 1 else f'All {runs:,} runs are'} done, in {done.directory}.",
        f"Next: dcpg report {shlex.quote(str(done.directory))}",
    )


def status(directory: Path, as_json: bool) -> None:
    """Print how far a sweep has come."""
    from rich.console import Console

    from dcpg.cli.sweep_display import picture
    from dcpg.sweep.view import driver_of, view_directory

    plan, now = view_directory(directory)
    running, resume_command = driver_of(directory)
    if as_json:
        print(json.dumps({**now.to_json(), "driver_running": running, "command": resume_command}))
        return
    say(f"{plan.name}: {counted(len(plan.jobs), 'run')} in {directory}")
    Console().print(picture(now))
    if running:
        say("Its driver is running.")
    elif now.counts["waiting"] or now.counts["running"] or now.analyses_missing:
        say(f"No driver is running. Go on with: {resume_command or 'the command that started the sweep'}")
    elif now.counts["failed"]:
        command = resume_command or "the command that started the sweep"
        say(f"No driver is running. When the cause of the failures is gone: {command} --retry")
