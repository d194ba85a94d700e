"""The application, and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from dcpg import __version__
from dcpg.errors import BadInput
from dcpg.machine.memory import check_limit
from dcpg.settings import whole_number
from dcpg.text import say

F = TypeVar("F", bound=Callable[..., Any])


class _PlainFlags:
    """Leaves out the type of flags, which take no value, in --help."""

    def get_params(self, ctx: Any) -> Any:
        found = super().get_params(ctx)  # type: ignore[misc]
        for option in found:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        return found


class _Command(_PlainFlags, TyperCommand): ...


class _Group(_PlainFlags, TyperGroup): ...


class _App(typer.Typer):
    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, cls=_Command, **options)


app = _App(
    name="dcpg",
    cls=_Group,
    help="Delayed-Critic Policy Gradient: train agents on 200 Procgen levels, test them on levels never seen.\n\n"
    "Begin with:  dcpg train dcpg --game starpilot --preset laptop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"dcpg {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options that are given before a command."""
    check_limit()


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


def steps_option(name: str, text: str) -> Any:
    """An option that takes a number of steps, also as 1e6 or 1_000_000."""

    def parse(value: str) -> int:
        try:
            return whole_number(value)
        except ValueError:
            raise BadInput(f"{name} takes a whole number of steps, such as 1000000 or 1e6; got {value!r}.") from None

    return typer.Option(name, metavar="N", parser=parse, help=text)


At = Annotated[
    int | None,
    steps_option("--at", "Use the weights at this number of steps (a milestone; 0: untrained) instead of the newest."),
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
