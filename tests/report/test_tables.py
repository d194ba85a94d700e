"""Every cell of every table, against plain sums over the numbers that the runs were made of."""

from __future__ import annotations

import re

import pytest

from tests.report.grid import (
    ALL_TABLES,
    BELIEVERS,
    FIGURES,
    GAMES,
    LEVELS,
    MAIN,
    NAMES,
    SCORE,
    SCORE_TABLES,
    TABLES,
    TITLES,
    Built,
    Figure,
    assert_cell,
    deviation,
    mean,
    papers,
    read_csv,
)


def expected(grid: Built, name: str) -> tuple[list[str], dict[tuple[str, str], Figure]]:
    """The columns, and every cell by row and column."""
    printed, cells = papers(), dict[tuple[str, str], Figure]()
    if name in ("table1", "table7"):
        split = "test" if name == "table1" else "train"
        for method in MAIN:
            for game in GAMES:
                finals = grid.finals(method, game, split)
                figure = Figure(mean(finals), deviation(finals), "3", printed[split, "return", game, method])
                cells[TITLES[game], NAMES[method]] = figure
            of_paper = printed[split, "ppo_normalised_score", "all", method]
            cells[SCORE, NAMES[method]] = Figure(*grid.score(method, split), "3", of_paper)
        return MAIN, cells
    if name == "table10":
        for method in BELIEVERS:
            runs = grid.of(method, "bigfish")
            title = NAMES[method]
            for row, counts, paper in (
                ("wrong actions believed", [r.wrong for r in runs], printed["train", "ood_actions", "bigfish", method]),
                ("by raw action number", [r.raw for r in runs], None),
            ):
                every = [float(k) for of_run in counts for k, n in enumerate(of_run) for _ in range(n)]
                cells[row, title] = Figure(mean(every), deviation(every), "3", paper)
            means = [sum(k * n for k, n in enumerate(r.wrong)) / sum(r.wrong) for r in runs]
            cells["deviation over seeds", title] = Figure(deviation(means), None, "3", None)
        return BELIEVERS, cells
    splits, methods = SCORE_TABLES[name]
    for split in splits:
        for method in methods:
            of_paper_or_none = printed.get((split, "ppo_normalised_score", "all", method))
            cells[LEVELS[split], NAMES[method]] = Figure(*grid.score(method, split), "3", of_paper_or_none)
    return methods, cells


def test_the_grid_is_read_whole(grid: Built) -> None:
    assert len(grid.runs) == 15 * 16 * 3 == grid.records
    assert all((run.path / "SYNTHETIC").is_file() for run in (*grid.runs, *grid.stiff))
    assert grid.tables == ALL_TABLES
    assert sorted(grid.figures) == sorted(FIGURES)
    # the shorter runs are used in the figures of stiffness, so nothing is odd about them
    (problem,) = grid.problems
    assert "6 measured runs, this one first, are not in Figures 2 and 7" in problem
    assert not [entry for entry in grid.missing if "dcpg resume" in " ".join(entry.commands) or "grid" in entry.what]


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_a_table(grid: Built, name: str) -> None:
    methods, wanted = expected(grid, name)
    found = read_csv(grid.out / "tables" / f"{name}.csv")
    assert list(found) == sorted(wanted, key=lambda k: (_rows(wanted).index(k[0]), methods.index(_method(k[1]))))
    for key, figure in wanted.items():
        assert_cell(found[key], figure)
    if name in ("table1", "table7"):
        assert len(wanted) == 17 * 7
        assert wanted[SCORE, "PPO"].mean == pytest.approx(100)


@pytest.mark.parametrize("name", TABLES)
def test_markdown_holds_the_same_figures(grid: Built, name: str) -> None:
    methods, wanted = expected(grid, name)
    digits = 2 if name == "table10" else 1
    text = (grid.out / "tables" / f"{name}.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if line[:1] == "|"]
    header, rule, *rows = lines
    assert header[1:] == [NAMES[m] for m in methods]
    assert rule == ["---"] * len(header)
    assert [row[0] for row in rows] == _rows(wanted)
    for row in rows:
        for column, cell in zip(header[1:], row[1:], strict=True):
            figure = wanted[row[0], column]
            own, paper = figure.text(digits), figure.papers_text(digits)
            assert cell == (f"{own} / {paper}" if figure.paper else own)
    assert f"## Table {name.removeprefix('table')}. " in text
    assert "- 24,985,600 steps, preset paper, 200 training levels. The paper: 25,000,000 steps, 10 seeds." in text
    if name != "table10":
        assert "over all 16 games, divided by these PPO runs" in text


@pytest.mark.parametrize("name", TABLES)
def test_latex_is_well_formed_and_holds_the_same_figures(grid: Built, name: str) -> None:
    methods, wanted = expected(grid, name)
    digits = 2 if name == "table10" else 1
    text = (grid.out / "tables" / f"{name}.tex").read_text()
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    opened = list[str]()
    for kind, environment in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(environment)
        else:
            assert opened.pop() == environment
    assert opened == []
    assert not re.search(r"(?<!\\)[%_#^~]", text)
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert text.isascii()
    body = text.split("\\toprule\n")[1].split("\\bottomrule")[0]
    outside = text.replace(body, "")
    assert not re.search(r"(?<!\\)&", outside)
    rows = [line.removesuffix(" \\\\").split(" & ") for line in body.splitlines() if line != "\\midrule"]
    assert all(line.endswith(" \\\\") or line == "\\midrule" for line in body.splitlines())
    plain = [[cell.replace("$\\pm$", "±").replace("\\&", "&") for cell in row] for row in rows]
    assert plain[0][1:] == [NAMES[m] for m in methods]
    assert "{l" + "c" * len(methods) + "}" in text
    shown = iter(plain[1:])
    for row in _rows(wanted):
        figures = [wanted[row, NAMES[m]] for m in methods]
        assert next(shown) == [row, *(f.text(digits) for f in figures)]
        if any(f.paper for f in figures):
            assert next(shown) == ["\\quad paper", *(f.papers_text(digits) for f in figures)]
    assert next(shown, None) is None


def test_table_8_says_which_figure_is_a_misprint(grid: Built) -> None:
    for ending in ("md", "tex"):
        text = (grid.out / "tables" / f"table8.{ending}").read_text().replace("$\\pm$", "±")
        assert "prints 152.7 ± 4.4 for DCPG on training levels, which is DDCPG's figure" in text
        assert "148.9 ± 4.3, which stands here" in text
    cell = read_csv(grid.out / "tables" / "table8.csv")["training levels", "DCPG"]
    assert (cell["paper mean"], cell["paper std"]) == ("148.9", "4.3")
    row = next(r for r in (grid.out / "tables" / "table8.md").read_text().split("\n") if r.startswith("| training"))
    assert row.split(" | ")[-1].endswith("/ 148.9 ± 4.3 |")


def _rows(wanted: dict[tuple[str, str], Figure]) -> list[str]:
    return list(dict.fromkeys(row for row, _ in wanted))


def _method(title: str) -> str:
    return next(m for m, name in NAMES.items() if name == title)
