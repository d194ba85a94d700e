"""Methods, settings and metrics on the pages are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dcpg
from dcpg.config.presets import PRESETS
from dcpg.config.resolve import origins, resolve
from dcpg.config.schema import Config
from dcpg.methods import METHODS
from dcpg.storage.rows import read_rows
from tests.docs.pages import DOCS, ROOT, section, shown, table_rows


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


@pytest.mark.parametrize("name", METHODS)
def test_the_methods_table_names_every_term_and_epoch(name: str) -> None:
    row = method_rows()[name]
    method = resolve(name, "bigfish").declared()
    for cell, lines in ((row[2], method.policy_phase), (row[3], method.auxiliary_phase)):
        terms = [term for line in lines for step in line.adams.values() for term in step]
        assert terms_in(cell) == terms
        assert re.findall(r"(\d+) epochs?", cell) == [str(line.epochs) for line in lines]


def own_settings(config: Config) -> set[str]:
    """Shared settings that belong on the page of a method because they define it."""
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


def test_combining_names_every_augmentation() -> None:
    from dcpg.core.augmentations import AUGMENTATIONS

    row = next(r for r in table_rows(section(DOCS / "combining.md", "What the settings do")) if r[0] == "`augment`")
    assert [word for word in re.findall(r"`([\w-]+)`", row[1]) if word in AUGMENTATIONS] == list(AUGMENTATIONS)
    listed = table_rows(section(DOCS / "methods/ucb-drac.md", "Augmentations"))[1:]
    assert [row[0].strip("`") for row in listed] == list(AUGMENTATIONS)
