"""The documentation says what the code does: references, tables, links and examples."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import dcpg
from dcpg.cli.analyse import Analysis
from dcpg.cli.options import app, parse_settings
from dcpg.config.presets import PRESETS
from dcpg.config.resolve import origins, resolve
from dcpg.config.schema import Config
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.storage.rows import read_rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def code_block(page: Path, containing: str = "") -> str:
    """The first Python block of a page that contains a text."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if containing in block)


def table_rows(text: str) -> list[list[str]]:
    """The cells of every line of every table, headings included, rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def section(page: Path, heading: str) -> str:
    return page.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def imported(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A file as a module, forgotten after the test."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def methods_restored() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


# -- references


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Every function, class, method and field that statements define, dotted."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= names_in(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(prefix + node.target.id)
        if isinstance(node, ast.Assign):
            found |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_reference_of_algorithm_to_code_resolves() -> None:
    text = (DOCS / "algorithm-to-code.md").read_text()
    references = re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
    assert len(references) == text.count("::") - text.count("`file::symbol`")
    assert len(references) > 50
    missing = [
        f"{file}::{symbol}"
        for file, symbol in references
        if not (ROOT / file).is_file() or symbol not in names_in(ast.parse((ROOT / file).read_text()).body)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("Algorithm 1, (Dynamics-aware) Delayed-Critic Policy Gradient", list(range(1, 14))),
        ("Algorithm 3, Separate Delayed-Critic Policy Gradient", [5, 7, 8, 10, 13, 14]),  # where it differs
    ],
)
def test_every_line_of_the_algorithms_has_code(algorithm: str, expected: list[int]) -> None:
    rows = table_rows(section(DOCS / "algorithm-to-code.md", algorithm))
    lines = [int(m[1]) for paper, code in rows if (m := re.match(r"line (\d+),", paper)) and "::" in code]
    assert sorted(set(lines)) == expected


def test_every_objective_is_in_algorithm_to_code() -> None:
    tree = ast.parse((ROOT / "dcpg/objectives.py").read_text())
    text = (DOCS / "algorithm-to-code.md").read_text()
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [name for name in functions if f"`dcpg/objectives.py::{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_inside_the_project_is_broken(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    paths = {(page.parent / target).resolve() for target in targets if target}
    assert [p for p in paths if not p.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_have_as_many_cells_in_every_row(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(row) for row in table_rows(table)}) == 1, table


# -- tables


def method_rows() -> dict[str, list[str]]:
    """The README's table of methods by name."""
    rows = table_rows(section(ROOT / "README.md", "Methods"))
    return {found[1]: row for row in rows if (found := re.match(r"\[`([\w+-]+)`\]", row[0]))}


def terms_in(text: str) -> list[str]:
    return re.findall(r"\b(?:[JCGP]_\w+|H)\b", text)


def test_the_table_of_methods_is_the_table_of_methods() -> None:
    named = [(name, int(row[-1])) for name, row in method_rows().items()]
    assert named == [(name, resolve(name, "bigfish").declared().N_pi) for name in METHODS]


def test_the_readme_explains_every_term() -> None:
    rows = table_rows(section(ROOT / "README.md", "Methods"))
    explained = [term for row in rows if len(row) == 2 for term in terms_in(row[0])]
    used = {term for name in METHODS for terms in resolve(name, "bigfish").declared().adams.values() for term in terms}
    assert sorted(explained) == sorted(used)


def test_the_index_links_every_method() -> None:
    text = (DOCS / "index.md").read_text()
    assert [name for name in METHODS if f"](methods/{name}.md)" not in text] == []
    assert {page.stem for page in (DOCS / "methods").glob("*.md")} == set(METHODS)


def test_the_index_links_every_page() -> None:
    text = (DOCS / "index.md").read_text()
    named = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    assert [name for name in sorted(named) if f"]({name})" not in text] == []


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_table_names_every_term_and_epoch(name: str) -> None:
    row = method_rows()[name]
    method = resolve(name, "bigfish").declared()
    for cell, lines in ((row[2], method.policy_phase), (row[3], method.auxiliary_phase)):
        terms = [term for line in lines for step in line.adams.values() for term in step]
        assert terms_in(cell) == terms
        assert re.findall(r"(\d+) epochs?", cell) == [str(line.epochs) for line in lines]


def own_settings(config: Config) -> set[str]:
    """Shared settings that belong on a method's page, since the method is made by them."""
    names: set[str] = set()
    if config.augment != "none":
        names |= {"augment", "drac.alpha_r", "drac.c", "drac.window"}
    if config.levels.sampler != "uniform":
        names |= {"levels.sampler", "levels.beta", "levels.rho"}
    return names


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_lists_its_settings_and_metrics(name: str) -> None:
    page, config = DOCS / "methods" / f"{name}.md", resolve(name, "bigfish")
    own = own_settings(config)
    expected = [
        [f"`{key}`", shown(value), origin]
        for key, value, origin in origins(config, {})
        if key.startswith("algorithm.") or key in own
    ]
    assert table_rows(section(page, "Settings"))[1:] == expected

    expected = [
        [f"`{key}`"]
        for key in ("rollout", "steps", "episode_returns", "episode_lengths", "episode_levels", "reward_variance")
    ]
    expected += [["`levels_scored`"], ["`levels_top_probability`"]] if config.levels.sampler != "uniform" else []
    expected += [["`augmentation`"]] if config.augment != "none" else []
    for adam, terms in config.declared().adams.items():
        for term, (weight, _) in terms.items():
            scaled = [f"`{adam}.{term}.scaled`", f"the same times its weight, {weight:g}"]
            expected += [[f"`{adam}.{term}`"], scaled]
        expected.append([f"`{adam}.gradient_norm`"])
    listed = table_rows(section(page, "Logged metrics").split("eval.jsonl")[0])[1:]
    assert [row[: len(e)] for row, e in zip(listed, expected, strict=True)] == expected


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_gives_the_equation_of_every_term(name: str) -> None:
    rows = table_rows(section(DOCS / "methods" / f"{name}.md", "What it minimises"))
    explained = [row[0] for row in rows if terms_in(row[0]) == [row[0]]]
    steps = resolve(name, "bigfish").declared().adams.values()
    assert sorted(explained) == sorted({term for terms in steps for term in terms})


@pytest.mark.parametrize("name", ["ucb-drac", "plr", "idaac"])
def test_a_run_writes_the_metrics_that_its_page_lists(name: str, tmp_path: Path) -> None:
    quick = {"evaluation.max_steps": 20, "evaluation.episodes": 2}
    run = dcpg.train(name, game="coinrun", preset="tiny", steps=128, settings=quick, out=tmp_path / "run")
    tables = table_rows(section(DOCS / "methods" / f"{name}.md", "Logged metrics").split("eval.jsonl")[0])
    (row,) = read_rows(run.directory / "metrics.jsonl")
    assert [f"`{key}`" for key in row] == [listed[0] for listed in tables[1:]]


def test_the_presets_page_lists_what_presets_set() -> None:
    page = DOCS / "presets.md"
    values = {
        preset: {name: value for name, value, _ in origins(resolve("ddcpg", "bigfish", preset=preset), {})}
        for preset in PRESETS
    }
    changed = [name for name in values["paper"] if any(name in preset for preset in PRESETS.values())]

    def cell(preset: str, name: str) -> str:
        free = name == "machine.threads" and name not in PRESETS[preset]
        return "all cores" if free else shown(values[preset][name])

    heading, *rows = table_rows(section(page, "What each sets"))
    assert heading == ["setting", *PRESETS]
    expected = [[f"`{name}`", *(cell(preset, name) for preset in PRESETS)] for name in changed]
    assert rows == expected, "\n".join(f"| {' | '.join(row)} |" for row in expected)

    shared = [
        [f"`{name}`", cell("paper", name), origin]
        for name, _, origin in origins(resolve("ddcpg", "bigfish"), {})
        if not name.startswith("algorithm.") and name not in ("method", "game", "seed", "preset")
    ]
    assert table_rows(section(page, "All shared settings"))[1:] == shared


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that measured itself."""
    settings = {"analyse": "stiffness,ood-actions", "evaluation.max_steps": 20, "evaluation.episodes": 2}
    out = tmp_path_factory.mktemp("docs") / "run"
    return dcpg.train("ddcpg", game="bigfish", preset="tiny", steps=128, settings=settings, out=out).directory


def keys_of(plain: dict[str, Any]) -> set[str]:
    """Dotted; SPLIT stands for train and test."""
    found = set()
    for key, value in plain.items():
        name = "SPLIT" if key in ("train", "test") else key
        found |= {f"{name}.{below}" for below in value} if isinstance(value, dict) else {name}
    return found


@pytest.mark.parametrize("name", list(Analysis))
def test_an_analysiss_page_lists_what_is_kept(name: str, analysed: Path) -> None:
    sizes = {"stiffness": ["--states", "16"], "ood-actions": ["--states", "16"], "levels": ["--levels", "2"]}
    result = CliRunner().invoke(app, ["analyse", name, str(analysed), "--json", *sizes.get(name, [])])
    assert result.exit_code == 0, result.output
    shared = table_rows((DOCS / "analyses/index.md").read_text().split("Every JSON file has")[1].split("\n## ")[0])
    rows = table_rows(section(DOCS / f"analyses/{name}.md", "What is printed and kept"))
    listed = [key for row in [*shared, *rows] for key in re.findall(r"`([\w.]+)`", row[0])]
    assert len(set(listed)) == len(listed)
    assert set(listed) == keys_of(json.loads(result.output))


def test_the_analyses_pages_list_the_columns_of_a_run(analysed: Path) -> None:
    (row,) = read_rows(analysed / "metrics.jsonl")
    listed = [
        column
        for page in ("stiffness", "ood-actions")
        for cells in table_rows(section(DOCS / f"analyses/{page}.md", "While a run trains"))[1:]
        for column in re.findall(r"`(\w+)`", cells[0])
    ]
    assert listed == [column for column in row if column.startswith(("stiffness", "ood_actions"))]


def test_the_analyses_pages_name_every_analysis_and_special_action() -> None:
    from dcpg.core.wrong_actions import SPECIAL_ACTIONS
    from dcpg.envs.procgen import GAMES

    linked = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\)", (DOCS / "analyses/index.md").read_text(), re.MULTILINE)
    assert linked == list(Analysis)
    assert {page.stem for page in (DOCS / "analyses").glob("*.md")} == {"index", *Analysis}
    idle, special = table_rows(section(DOCS / "analyses/ood-actions.md", "The formula"))[1:]
    assert set(re.findall(r"`(\w+)`", special[0])) == SPECIAL_ACTIONS
    assert set(re.findall(r"`(\w+)`", idle[0])) == set(GAMES) - SPECIAL_ACTIONS


def test_the_report_page_lists_every_table_and_figure() -> None:
    from dcpg.report.paper import method_title
    from dcpg.report.tables import METHODS_OF_TABLES
    from dcpg.report.write import NAMES

    rows = {row[0].strip("`"): row[2] for row in table_rows(section(DOCS / "report.md", "Tables and figures"))[1:]}
    assert sorted(rows) == sorted(NAMES)
    for name, methods in METHODS_OF_TABLES.items():
        assert [m for m in methods if not re.search(rf"{re.escape(method_title(m))}(?![\w+])", rows[name])] == []


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


# -- commands


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
        assert (config.declared().augmented) == (config.augment != "none")


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


def test_combining_names_every_augmentation() -> None:
    from dcpg.core.augmentations import AUGMENTATIONS

    row = next(r for r in table_rows(section(DOCS / "combining.md", "What the settings do")) if r[0] == "`augment`")
    assert [word for word in re.findall(r"`([\w-]+)`", row[1]) if word in AUGMENTATIONS] == list(AUGMENTATIONS)
    listed = table_rows(section(DOCS / "methods/ucb-drac.md", "Augmentations"))[1:]
    assert [row[0].strip("`") for row in listed] == list(AUGMENTATIONS)


# -- examples


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = code_block(ROOT / "README.md", "dcpg.train")
    assert len(block.splitlines()) <= 12
    assert block.count('preset="laptop"') == 1
    quick = 'preset="tiny", steps=256, settings={"evaluation.max_steps": 20}'
    block = block.replace('preset="laptop"', quick).replace("episodes=20", "episodes=2")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:2]] == ["training", "return"]
    assert json.loads((tmp_path / "runs/first/summary.json").read_text())["status"] == "finished"


@pytest.mark.usefixtures("methods_restored")
def test_contributing_example_is_short_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = code_block(ROOT / "CONTRIBUTING.md")
    assert len(block.splitlines()) < 40
    file = tmp_path / "variant.py"
    file.write_text(block)
    before = set(METHODS)
    imported(file, "dcpg_variant_of_the_docs", monkeypatch)
    (name,) = set(METHODS) - before
    quick = {"evaluation.max_steps": 20}
    run = dcpg.train(name, game="coinrun", preset="tiny", steps=4 * 128, settings=quick, out=tmp_path / "run")
    rows = read_rows(run.directory / "metrics.jsonl")
    assert run.summary["status"] == "finished"
    assert [("auxiliary.J_V" in row) for row in rows] == [False, True, False, True]  # two phases
    assert all(row["policy.C_V"] > 0 for row in rows)
    assert CliRunner().invoke(app, ["explain", name]).exit_code == 0


@pytest.mark.usefixtures("methods_restored")
def test_combining_example_trains_with_levels_and_augmentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "combined.py"
    file.write_text(code_block(DOCS / "combining.md", "with_joint_dynamics"))
    before = set(METHODS)
    imported(file, "dcpg_combination_of_the_docs", monkeypatch)
    (name,) = set(METHODS) - before
    settings = {"levels.sampler": "prioritised", "augment": "crop", "evaluation.max_steps": 20}
    run = dcpg.train(name, game="coinrun", preset="tiny", steps=2 * 128, settings=settings, out=tmp_path / "run")
    (*_, row) = read_rows(run.directory / "metrics.jsonl")
    assert {"levels_scored", "augmentation", "policy.G_pi", "policy.G_V", "auxiliary.J_f"} <= set(row)


@pytest.mark.parametrize(("page", "file"), [("CONTRIBUTING.md", "dcpg_huber"), ("docs/combining.md", "separate_ddcpg")])
def test_a_variant_can_be_put_where_the_page_says(page: str, file: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "dcpg", tmp_path / "dcpg")
    (tmp_path / f"dcpg/methods/{file}.py").write_text(code_block(ROOT / page))
    table = tmp_path / "dcpg/methods/__init__.py"
    text = table.read_text()
    assert text.count("import ppo, daac, ppg, dcpg\n") == 1
    table.write_text(text.replace("import ppo, daac, ppg, dcpg\n", f"import ppo, daac, ppg, dcpg, {file}\n"))
    command = [sys.executable, "-m", "dcpg", "explain", file.replace("_", "-")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "C_pi" in done.stdout


def test_the_environment_on_the_page_is_the_example() -> None:
    assert code_block(DOCS / "own-environment.md", "class Corridor") == (DOCS / "examples/corridor.py").read_text()


@pytest.fixture
def corridor(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(DOCS / "examples/corridor.py", "corridor_of_the_docs", monkeypatch)


def test_corridor_levels_follow_from_their_seeds(corridor: ModuleType) -> None:
    train, test = corridor.make(64, 1), corridor.make_test(64, 1)
    _, seen = train.reset(seed=1)
    _, unseen = test.reset(seed=1)
    assert seen["level_seed"].max() < corridor.TRAIN_LEVELS <= unseen["level_seed"].min()
    for seed in (0, 7, 12345):
        assert all(np.array_equal(a, b) for a, b in zip(corridor.level(seed), corridor.level(seed), strict=True))
    assert len({tuple(corridor.level(seed)[0]) for seed in range(200)}) > 150


def test_corridor_can_be_solved_and_goes_on_from_its_state(corridor: ModuleType) -> None:
    env = corridor.make(8, 3)
    pictures, _ = env.reset(seed=3)
    assert pictures.shape == (8, 16, 16, 3)
    total = np.zeros(8)
    for step in range(corridor.WALLS * corridor.SPACING):
        if step == 10:
            saved = env.get_state()
        gap = env.gaps[np.arange(8), env.columns // corridor.SPACING]
        actions = 1 + np.sign(np.where(env.rows < gap, 1, np.where(env.rows > gap + corridor.GAP - 1, -1, 0)))
        _, rewards, ended, _, _ = env.step(actions)
        total += rewards
    assert ended.all()
    assert total.tolist() == [corridor.WALLS] * 8

    other = corridor.make(8, 99)
    other.reset(seed=99)
    for copy in (other, env):
        copy.set_state(saved)
    for step in range(100):
        a, b = (copy.step(np.full(8, step % 3)) for copy in (env, other))
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[4]["level_seed"], b[4]["level_seed"])


def test_corridor_trains_evaluates_both_splits_and_resumes(corridor: ModuleType, tmp_path: Path) -> None:
    settings = {**corridor.SETTINGS, "env.num_envs": 8, "algorithm.N_pi": 2, "evaluation.episodes": 10}
    options = {"env": corridor.make, "test_env": corridor.make_test}
    whole = dcpg.train("dcpg", steps=4 * 256, settings=settings, out=tmp_path / "whole", **options)
    (*_, row) = read_rows(whole.directory / "eval.jsonl")
    assert len(row["train_returns"]) == len(row["test_returns"]) == 10
    assert max(row["train_levels"]) < corridor.TRAIN_LEVELS <= min(row["test_levels"])
    assert {level for r in read_rows(whole.directory / "metrics.jsonl") for level in r["episode_levels"]} <= set(
        range(200)
    )

    half = dcpg.train("dcpg", steps=2 * 256, settings=settings, out=tmp_path / "half", **options)
    dcpg.resume(half, steps=4 * 256, **options)
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert (half.directory / name).read_bytes() == (whole.directory / name).read_bytes()

    again = dcpg.evaluate(whole, levels="test", **options)
    assert again["returns"] == row["test_returns"]
    agent = dcpg.load(whole, env=corridor.make)
    assert 0 <= int(agent.act(np.zeros(agent.shape, np.uint8))) < 3


# -- the site


class Page(HTMLParser):
    """What a page of the site points to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loaded, self.pictures = list[str](), list[str](), list[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag == "link":
            self.loaded.append(str(given["href"]))
        elif tag in ("img", "script") and given.get("src"):
            (self.pictures if tag == "img" else self.loaded).append(str(given["src"]))


def test_the_site_is_built_strictly_and_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    pages = {path: Page(path) for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    beside = {"readme", "changelog", "contributing"}
    written = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert {path.relative_to(tmp_path).with_suffix("").as_posix() for path in pages} == written | beside
    reached = {(tmp_path / unquote(link.split("#")[0])).resolve() for link in pages[tmp_path / "index.html"].links}
    assert set(pages) <= reached

    for path, page in pages.items():
        assert [address for address in page.loaded + page.pictures if "//" in address] == [], path  # no network
        targets = [t.split("#")[0] for t in page.links + page.loaded + page.pictures if "://" not in t]
        assert [t for t in targets if t and not (path.parent / unquote(t)).exists()] == [], path
    shown = {(path.parent / unquote(picture)).name for path, page in pages.items() for picture in page.pictures}
    assert shown == {picture.name for picture in (DOCS / "images").iterdir()}
    assert [path.name for path in tmp_path.rglob("*.py*")] == ["corridor.py"]
