"""The application, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dcpg import __version__
from dcpg.errors import BadInput

app = typer.Typer(
    name="dcpg",
    help="Delayed-Critic Policy Gradient: train agents on 200 Procgen levels, test them on levels never seen.\n\n"
    "Begin with:  dcpg train dcpg --game starpilot --preset laptop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"dcpg {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options that are given before a command."""


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


MethodName = Annotated[str, typer.Argument(metavar="METHOD", help="A method's name; `dcpg methods` lists them.")]


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, as made by `dcpg train`.")]


Preset = Annotated[str, typer.Option(help="Sizes: paper (25M steps, days on a CPU), laptop (minutes), tiny (seconds).")]


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its dotted name; `dcpg config METHOD` lists them."),
]


Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py|MODULE",
        help="A file or module with your own @method or @encoder declarations; may be given several times. "
        "DCPG_PLUGINS and installed plugins are found without it.",
    ),
]


Env = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="ID|FILE.py:FUNCTION",
        help="Your own environment: a Gymnasium id such as CartPole-v1, or a function (num_envs, seed) in a file or "
        "module, such as maze.py:make or package.maze:make.",
    ),
]


TestEnv = Annotated[
    str | None,
    typer.Option("--test-env", metavar="ID|FILE.py:FUNCTION", help="The same with levels that training never sees."),
]


EnvName = Annotated[str | None, typer.Option("--name", help="A name for your own environment. (default: from --env)")]


def load_plugins(given: list[str] | None) -> None:
    """Load the plugins that were given on the command line."""
    if given:
        from dcpg.methods.plugins import load_all

        load_all(given)


At = Annotated[
    int | None,
    typer.Option(help="Use the weights at this number of steps (a milestone; 0: untrained) instead of the newest."),
]


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE pairs as a dictionary."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--set takes KEY=VALUE, such as algorithm.N_pi=16; got {pair!r}.")
        found[name.strip()] = value.strip()
    return found
