"""Commands, make targets and exit codes on the pages exist, and commands can be read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import dcpg
from dcpg.cli.app import app
from dcpg.cli.options import parse_settings
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.errors import BadInput
from tests.docs.pages import DOCS, PAGES, ROOT, section, table_rows


def test_exit_codes_are_those_of_the_errors() -> None:
    from dcpg import errors

    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.DcpgError)]
    codes = {kind.exit_code for kind in kinds}
    for page, title, extra in (
        (ROOT / "README.md", "Stop and resume", {0}),
        (DOCS / "reliability.md", "Exit codes", {0, 130}),
    ):
        listed = {int(row[0]) for row in table_rows(section(page, title)) if row[0].isdigit()}
        assert listed == codes | extra


def test_readme_names_every_command_and_each_has_help() -> None:
    named = set(re.findall(r"`dcpg ([a-z]+)", section(ROOT / "README.md", "Command line")))
    assert named == {command.name or command.callback.__name__ for command in app.registered_commands}
    for command in sorted(named):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0, command
        assert "Usage" in result.output


def test_every_command_that_a_page_shows_exists() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    for page in PAGES:
        shown_commands = re.findall(r"(?:^    |`)dcpg ([a-z]+)", page.read_text(), re.MULTILINE)
        assert set(shown_commands) <= known, page


def test_every_command_line_that_a_page_shows_can_be_read() -> None:
    """Its options exist and have values of their kind; nothing is started."""
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    seen = 0
    for page in PAGES:
        for line in re.findall(r"^ {4,}dcpg ([a-z]+ .*)$", page.read_text(), re.MULTILINE):
            name, *words = shlex.split(line, comments=True)
            commands[name].make_context(name, words)
            seen += 1
    assert seen > 60


def test_make_has_the_targets_that_the_pages_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets, page


def test_citation_names_this_version() -> None:
    version = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == [dcpg.__version__]
    assert f"## {dcpg.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def resolved(command: str) -> Config:
    """The configuration that a `dcpg train` command asks for."""
    words = iter(shlex.split(command, comments=True)[2:])
    method, options, pairs = (
        next(words),
        {"--game": "", "--preset": "paper", "--steps": "", "--seed": "", "--out": ""},
        [],
    )
    for word in words:
        if word == "--set":
            pairs.append(next(words))
        else:
            assert word in options, command
            options[word] = next(words)
    return resolve(method, options["--game"], preset=options["--preset"], settings=parse_settings(pairs))


def test_the_commands_of_combining_resolve() -> None:
    shown_commands = re.findall(r"^    (dcpg train .*)$", (DOCS / "combining.md").read_text(), re.MULTILINE)
    configs = [resolved(command) for command in shown_commands]
    assert len(configs) >= 10
    assert {config.augment for config in configs} >= {"none", "ucb", "crop"}
    assert {config.levels.sampler for config in configs} == {"uniform", "prioritised"}
    for config in configs:
        assert config.declared().augmented == (config.augment != "none")


def test_what_combining_calls_refused_is_refused() -> None:
    refused = re.findall(r"^\| `(dcpg train [^`]*)`", (DOCS / "combining.md").read_text(), re.MULTILINE)
    assert len(refused) == 5
    for command in refused:
        with pytest.raises(BadInput):
            resolved(command)


def test_the_commands_of_the_analyses_resolve() -> None:
    text = (DOCS / "analyses/index.md").read_text()
    configs = [resolved(command) for command in re.findall(r"^    (dcpg train .*)$", text, re.MULTILINE)]
    assert [config.analyse for config in configs] == [("stiffness",), *[("stiffness", "ood-actions")] * 2]
    assert [config.analyse_every for config in configs] == [8, 1, 8]


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_the_commands_of_a_methods_page_resolve(page: Path) -> None:
    text = page.read_text()
    named = [resolved(command).method for command in re.findall(r"^    (dcpg train .*)$", text, re.MULTILINE)]
    assert named == [page.stem] * 2
    assert re.findall(r"^    dcpg explain (\S+)", text, re.MULTILINE) == [page.stem]
    (declared,) = re.findall(r"Declared in `(dcpg/methods/\w+\.py)`", text)
    assert f'@method("{page.stem}"' in (ROOT / declared).read_text()
