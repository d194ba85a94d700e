"""Tables, figures and refusals of `dcpg report`, against plain sums over the numbers that the runs were made of."""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import json
import math
import os
import pickle
import random
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import dcpg
from dcpg.cli.app import main
from dcpg.cli.options import parse_settings
from dcpg.config.command import train_command
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.report import write as making
from dcpg.report.comparison import Stiff
from dcpg.report.missing import Missing, missing
from dcpg.runs.records import read, setting_of
from tests.synthetic import PAPER_STEPS, Row, Run, configuration, ood_actions, rows_of, some, stiffness_rows, write

# (lowest, highest) return of each game: rliable's constants
RANGES = {
    "bigfish": (1, 40), "bossfight": (0.5, 13), "caveflyer": (3.5, 12), "chaser": (0.5, 13), "climber": (2, 12.6),
    "coinrun": (5, 10), "dodgeball": (1.5, 19), "fruitbot": (-1.5, 32.4), "heist": (3.5, 10), "jumper": (1, 10),
    "leaper": (1.5, 10), "maze": (5, 10), "miner": (1.5, 13), "ninja": (3.5, 10), "plunder": (4.5, 30),
    "starpilot": (2.5, 64),
}  # fmt: skip
GAMES = list(RANGES)
TITLES = {
    "bigfish": "BigFish", "bossfight": "BossFight", "caveflyer": "CaveFlyer", "chaser": "Chaser", "climber": "Climber",
    "coinrun": "CoinRun", "dodgeball": "Dodgeball", "fruitbot": "FruitBot", "heist": "Heist", "jumper": "Jumper",
    "leaper": "Leaper", "maze": "Maze", "miner": "Miner", "ninja": "Ninja", "plunder": "Plunder",
    "starpilot": "StarPilot",
}  # fmt: skip
NAMES = {
    "ppo": "PPO", "ucb-drac": "UCB-DrAC", "plr": "PLR", "daac": "DAAC", "idaac": "IDAAC", "ppg": "PPG",
    "ppg+dr": "PPG+DR", "ppg+ar": "PPG+AR", "dppg": "DPPG", "dcpg": "DCPG", "separate-dcpg": "Separate DCPG",
    "dcpg+f": "DCPG+F", "dcpg+i": "DCPG+I", "dcpg+fi": "DCPG+FI", "ddcpg": "DDCPG",
}  # fmt: skip
SEEDS = (0, 1, 2)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)
STIFF_GAMES = {"bigfish": (0, 1), "chaser": (0,), "climber": (0,), "starpilot": (0,)}  # game -> seeds, of Figure 2
MAIN = ["ppo", "ucb-drac", "plr", "daac", "ppg", "dcpg", "ddcpg"]
FIVE = ["ppo", "daac", "ppg", "dcpg", "ddcpg"]
DELAY = ["ppg", "separate-dcpg", "dcpg"]
DYNAMICS = ["dcpg", "dcpg+f", "dcpg+i", "dcpg+fi", "ddcpg"]
SCORE = "PPO-normalised score"
LEVELS = {"train": "training levels", "test": "unseen levels"}
SCORE_TABLES = {
    "table2": (["test"], DYNAMICS),
    "table3": (["train", "test"], ["ppg", "ppg+dr", "ppg+ar"]),
    "table6": (["train", "test"], ["daac", "idaac"]),
    "table8": (["train", "test"], DELAY),
    "table9": (["train", "test"], DYNAMICS),
    "table11": (["test"], ["ppg", "dppg", "dcpg", "ddcpg"]),
}
BELIEVERS = ["dcpg+f", "dcpg+fi", "ddcpg"]
TABLES = ["table1", "table2", "table3", "table6", "table7", "table8", "table9", "table10", "table11"]
FIGURES = [*(f"figure{n}" for n in range(2, 17)), "profiles", "sample-efficiency"]


# -- sums on paper


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def deviation(values: list[float]) -> float:
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def papers() -> dict[tuple[str, str, str, str], tuple[float, float]]:
    with open(Path(dcpg.__file__).parent / "report" / "data" / "paper_results.csv") as file:
        return {
            (r["levels"], r["quantity"], r["game"], r["method"]): (float(r["mean"]), float(r["std"]))
            for r in csv.DictReader(file)
        }


@dataclass(frozen=True)
class Figure:
    """What a cell must hold."""

    mean: float | None
    std: float | None
    seeds: str
    paper: tuple[float, float | None] | None

    def text(self, digits: int) -> str:
        if self.mean is None:
            return "-"
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} ({self.seeds})"

    def papers_text(self, digits: int) -> str:
        return "-" if self.paper is None else f"{self.paper[0]:.{digits}f} ± {self.paper[1]:.{digits}f}"


# -- the grid: 15 methods x 16 games x 3 seeds, and what was made of it


@dataclass
class Built:
    """Numbers in, report out; plain data, so that two test processes can share it."""

    runs: list[Run]
    stiff: list[Run]
    out: Path
    plotted: dict[str, dict[str, Any]]
    tables: list[str]
    figures: list[str]
    problems: list[str]
    missing: list[Missing]
    records: int

    def of(self, method: str, game: str) -> list[Run]:
        return [run for run in self.runs if (run.method, run.game) == (method, game)]

    def finals(self, method: str, game: str, split: str) -> list[float]:
        return [run.rows[-1][f"{split}_return"] for run in self.of(method, game)]

    def over_training(self, method: str, game: str, column: str) -> tuple[list[int], list[float], list[float]]:
        """Steps, means over seeds, deviations over seeds."""
        runs = self.of(method, game)
        steps = [row["steps"] for row in runs[0].rows]
        values = [[run.rows[i][column] for run in runs] for i in range(len(steps))]
        return steps, [mean(v) for v in values], [deviation(v) for v in values]

    def score(self, method: str, split: str) -> tuple[float, float]:
        """PPO-normalised, and its deviation over seeds with PPO's means fixed."""
        ppo = {game: mean(self.finals("ppo", game, split)) for game in GAMES}
        value = 100 * mean([mean(self.finals(method, game, split)) / ppo[game] for game in GAMES])
        seeds = [100 * mean([self.finals(method, game, split)[k] / ppo[game] for game in GAMES]) for k in SEEDS]
        return value, deviation(seeds)

    def normalised(self, method: str, row: int = -1) -> dict[str, list[float]]:
        """Min-max normalised returns on unseen levels."""
        return {
            game: [(run.rows[row]["test_return"] - low) / (high - low) for run in self.of(method, game)]
            for game, (low, high) in RANGES.items()
        }


def build(folder: Path) -> Built:
    runs, stiff = list[Run](), list[Run]()
    for method in METHODS:
        first = configuration(method, "bigfish", 0)
        for game, (low, high) in RANGES.items():
            for seed in SEEDS:
                draw = random.Random(f"{method} {game} {seed}")
                config = dataclasses.replace(first, game=game, seed=seed)
                level = low + (high - low) * random.Random(f"{method} {game}").uniform(0.3, 0.9)
                rows = rows_of(config, draw, level=level)
                if method == "ppg+ar":  # as if its own discount were another one
                    for row in rows:
                        row["train_true_value_own_gamma"] = draw.uniform(1, 9)
                run = Run(folder / "runs" / f"{game}-{method}-{seed}", method, game, seed, rows)
                if game == "bigfish" and method in ("ppg", "dcpg"):
                    config = dataclasses.replace(config, analyse=("stiffness",))
                    run.metrics = stiffness_rows(config, draw)
                analyses = {}
                if game == "bigfish" and method in BELIEVERS:
                    run.wrong = [draw.randrange(50, 400) for _ in range(9)]
                    run.raw = [n + draw.randrange(200) for n in run.wrong]
                    analyses["ood-actions"] = ood_actions(run, config, PAPER_STEPS)
                write(run.path, config, rows, run.metrics, analyses)
                runs.append(run)
    cells = [(g, m, n, s) for g, seeds in STIFF_GAMES.items() for m in ("ppg", "dcpg") for n in COUNTS for s in seeds]
    cells += [("maze", "dcpg", n, 0) for n in (1, 10, 100)]  # in Figure 7 alone
    measured = {
        method: configuration(method, "bigfish", 0, steps=8_000_000, settings={"analyse": "stiffness"})
        for method in ("ppg", "dcpg")
    }
    for game, method, count, seed in cells:
        draw = random.Random(f"stiff {method} {game} {count} {seed}")
        config = dataclasses.replace(
            measured[method], game=game, seed=seed, levels=dataclasses.replace(measured[method].levels, count=count)
        )
        rows = rows_of(config, draw, rollouts=(1, config.rollouts))
        path = folder / "runs" / "stiffness" / f"{game}-{method}-{count}-{seed}"
        run = Run(path, method, game, seed, rows, stiffness_rows(config, draw), levels=count)
        write(path, config, rows, run.metrics)
        stiff.append(run)
    plotted: dict[str, dict[str, Any]] = {}
    original = making._write_figures

    def look_and_write(figures: Any, out: Path) -> list[Path]:
        plotted.update({name: plotted_of(figure) for name, figure in figures.items()})
        return original(figures, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "_write_figures", look_and_write)
        made = making.make([folder / "runs"], folder / "out")
    notes = [f"{p.path}: {p.text}" for p in made.problems]
    return Built(
        runs, stiff, folder / "out", plotted, made.tables, made.figures, notes, made.missing, len(made.board.records)
    )


def plotted_of(figure: Any) -> dict[str, Any]:
    """Everything that a figure shows, as numbers and words."""
    from matplotlib.collections import PolyCollection

    panels = []
    for axes in figure.axes:
        lines = [
            {"label": line.get_label(), "colour": line.get_color(), "style": line.get_linestyle(),
             "marker": line.get_marker(), "x": list(map(float, line.get_xdata())),
             "y": list(map(float, line.get_ydata()))}
            for line in axes.lines
        ]  # fmt: skip
        bands = []
        for band in axes.collections:
            if isinstance(band, PolyCollection):
                edges: dict[float, list[float]] = {}
                for path in band.get_paths():
                    for x, y in path.vertices:
                        edges.setdefault(float(x), []).append(float(y))
                bands.append({x: (min(ys), max(ys)) for x, ys in sorted(edges.items())})
        panels.append({
            "title": axes.get_title(), "xlabel": axes.get_xlabel(), "xscale": axes.get_xscale(), "lines": lines,
            "bands": bands, "bars": [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches],
            "rows": [label.get_text() for label in axes.get_yticklabels()],
        })  # fmt: skip
    legend = [text.get_text() for found in figure.legends for text in found.get_texts()]
    return {"title": figure.get_suptitle(), "panels": panels, "legend": legend}


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Made once, also where several processes share the tests."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        return build(tmp_path_factory.mktemp("grid"))
    shared = tmp_path_factory.getbasetemp().parent
    with open(shared / "grid.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / "grid.pickle"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(build(tmp_path_factory.mktemp("grid"))))
        found: Built = pickle.loads(kept.read_bytes())
        return found


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


def read_csv(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """(row, column) -> part -> text."""
    with open(path, newline="") as file:
        header, *lines = list(csv.reader(file))
    found: dict[tuple[str, str], dict[str, str]] = {}
    parts = ("paper mean", "paper std", "mean", "std", "seeds")
    for line in lines:
        assert len(line) == len(header)
        for title, text in zip(header[1:], line[1:], strict=True):
            part = next(p for p in parts if title.endswith(f" {p}"))
            found.setdefault((line[0], title.removesuffix(f" {part}")), {})[part] = text
    return found


def assert_cell(found: dict[str, str], wanted: Figure) -> None:
    for part, value in (("mean", wanted.mean), ("std", wanted.std)):
        assert (found[part] == "") if value is None else float(found[part]) == pytest.approx(value, rel=1e-9)
    assert found["seeds"] == wanted.seeds
    if wanted.paper is None:
        assert (found["paper mean"], found["paper std"]) == ("", "")
    else:
        assert float(found["paper mean"]) == pytest.approx(wanted.paper[0], rel=1e-12)
        assert found["paper std"] == ("" if wanted.paper[1] is None else str(wanted.paper[1]))


def test_the_grid_is_read_whole(grid: Built) -> None:
    assert len(grid.runs) == 15 * 16 * 3 == grid.records
    assert all((run.path / "SYNTHETIC").is_file() for run in (*grid.runs, *grid.stiff))
    assert grid.tables == TABLES
    assert sorted(grid.figures) == sorted(FIGURES)
    # the shorter runs are of eight settings of their own, one a number of levels; nothing else is odd
    assert len(grid.problems) == len(COUNTS) + 1
    assert "6 measured runs, this one first, are not in Figures 2 and 7" in grid.problems[-1]
    for count in COUNTS:
        runs = sum(run.levels == count for run in grid.stiff)
        assert any(
            f"{runs} runs are not compared with the others: 7,995,392 steps, preset paper, {count} training levels" in p
            for p in grid.problems
        )
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


# -- figures


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_picture_and_a_page(grid: Built, name: str) -> None:
    from PIL import Image

    pdf = (grid.out / "figures" / f"{name}.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")
    with Image.open(grid.out / "figures" / f"{name}.png") as picture:
        width, height = picture.size
        assert width >= 700
        assert height >= 200
        colours = picture.convert("RGB").getcolors(width * height)
    assert colours is not None
    assert len(colours) > 100
    assert max(n for n, _ in colours) < 0.98 * width * height
    assert grid.plotted[name]["title"]


def lines_of(panel: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The curves by their names in the legend; stars are the paper's."""
    return {line["label"]: line for line in panel["lines"] if line["marker"] != "*"}


def assert_curve(
    panel: dict[str, Any], place: int, label: str, curve: tuple[list[int], list[float], list[float]]
) -> None:
    """The `place`-th line of a panel and its band."""
    steps, means, stds = curve
    line = lines_of(panel)[label]
    assert list(lines_of(panel)).index(label) == place
    assert line["x"] == steps
    assert line["y"] == pytest.approx(means)
    band = panel["bands"][place]
    assert list(band) == steps
    assert [low for low, _ in band.values()] == pytest.approx([m - s for m, s in zip(means, stds, strict=True)])
    assert [high for _, high in band.values()] == pytest.approx([m + s for m, s in zip(means, stds, strict=True)])


@pytest.mark.parametrize(
    ("name", "games", "methods", "split"),
    [
        ("figure5", ["bigfish", "chaser", "climber", "dodgeball", "miner", "starpilot"], FIVE, "test"),
        ("figure6", ["bigfish", "chaser", "climber", "dodgeball"], DELAY, "test"),
        ("figure11", GAMES, FIVE, "train"),
        ("figure12", GAMES, FIVE, "test"),
        ("figure13", GAMES, DELAY, "train"),
        ("figure14", GAMES, DELAY, "test"),
    ],
)
def test_returns_over_training(grid: Built, name: str, games: list[str], methods: list[str], split: str) -> None:
    shown, printed = grid.plotted[name], papers()
    assert [panel["title"] for panel in shown["panels"]] == [TITLES[game] for game in games]
    assert [name for name in shown["legend"] if name != "the paper"] == [NAMES[m] for m in methods]
    assert shown["legend"].count("the paper") == 1
    assert f"return on {LEVELS[split]}, 3 seeds, 24,985,600 steps" in shown["title"]
    for panel, game in zip(shown["panels"], games, strict=True):
        assert list(lines_of(panel)) == [NAMES[m] for m in methods]
        for place, method in enumerate(methods):
            assert_curve(panel, place, NAMES[method], grid.over_training(method, game, f"{split}_return"))
        colours = [line["colour"] for line in lines_of(panel).values()]
        assert len(set(colours)) == len(methods)
        stars = [line for line in panel["lines"] if line["marker"] == "*"]
        wanted = [printed[split, "return", game, m][0] for m in methods if (split, "return", game, m) in printed]
        assert [star["y"] for star in stars] == [[value] for value in wanted]
        assert all((star["x"], star["label"]) == ([25_000_000], "the paper") for star in stars)


def assert_values(grid: Built, panel: dict[str, Any], method: str, game: str) -> None:
    wanted = {"true": "train_true_value", "predicted": "train_predicted_value"}
    if method == "ppg+ar":
        wanted["true, the method's own discount"] = "train_true_value_own_gamma"
    assert list(lines_of(panel)) == list(wanted)
    for place, (label, column) in enumerate(wanted.items()):
        assert_curve(panel, place, label, grid.over_training(method, game, column))
    assert [line["style"] for line in lines_of(panel).values()] == ["-", "--", ":"][: len(wanted)]


@pytest.mark.parametrize(
    ("name", "games", "method"),
    [
        ("figure4", ["bigfish", "chaser", "climber", "dodgeball"], "dcpg"),
        ("figure8", GAMES, "dcpg"),
        ("figure9", GAMES, "ppg+dr"),
        ("figure10", GAMES, "ppg+ar"),
    ],
)
def test_values_over_training(grid: Built, name: str, games: list[str], method: str) -> None:
    shown = grid.plotted[name]
    assert [panel["title"] for panel in shown["panels"]] == [TITLES[game] for game in games]
    assert f"values of {NAMES[method]}, 3 seeds" in shown["title"]
    for panel, game in zip(shown["panels"], games, strict=True):
        assert_values(grid, panel, method, game)


def test_figure_3(grid: Built) -> None:
    shown, methods = grid.plotted["figure3"], ["ppg", "ppg+dr", "ppg+ar"]
    assert "BigFish" in shown["title"]
    assert [panel["title"] for panel in shown["panels"]] == [
        "(a) return on training levels", "(a) return on unseen levels", "(b) PPG+DR", "(b) PPG+AR",
    ]  # fmt: skip
    for panel, split in zip(shown["panels"][:2], ("train", "test"), strict=True):
        assert list(lines_of(panel)) == [NAMES[m] for m in methods]
        for place, method in enumerate(methods):
            assert_curve(panel, place, NAMES[method], grid.over_training(method, "bigfish", f"{split}_return"))
    for panel, method in zip(shown["panels"][2:], methods[1:], strict=True):
        assert_values(grid, panel, method, "bigfish")


@pytest.mark.parametrize(
    ("name", "games"),
    [
        ("figure2", ["bigfish", "chaser", "climber", "starpilot"]),
        ("figure7", ["bigfish", "chaser", "climber", "maze", "starpilot"]),
    ],
)
def test_stiffness_against_the_number_of_levels(grid: Built, name: str, games: list[str]) -> None:
    shown = grid.plotted[name]
    assert [panel["title"] for panel in shown["panels"]] == [TITLES[game] for game in games]
    assert "2 seeds, 7,995,392 steps" in shown["title"]
    for panel, game in zip(shown["panels"], games, strict=True):
        assert (panel["xscale"], panel["xlabel"]) == ("log", "training levels")
        methods = ["dcpg"] if game == "maze" else ["ppg", "dcpg"]
        assert list(lines_of(panel)) == [NAMES[m] for m in methods]
        for place, method in enumerate(methods):
            found: dict[int, list[float]] = {}
            for run in grid.stiff:
                if (run.method, run.game) == (method, game):
                    measured = [row["stiffness"] for row in run.metrics if "stiffness" in row]
                    found.setdefault(run.levels, []).append(mean(measured))
            counts = sorted(found)
            assert counts == ([1, 10, 100] if game == "maze" else list(COUNTS))
            stds = [deviation(found[n]) if len(found[n]) > 1 else 0.0 for n in counts]
            assert_curve(panel, place, NAMES[method], (counts, [mean(found[n]) for n in counts], stds))


def middle_half(values: list[float]) -> float:
    cut = len(values) // 4
    return mean(sorted(values)[cut : len(values) - cut])


def middle(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def test_figure_15(grid: Built) -> None:
    methods, printed = ["ppo", "ppg", "dcpg", "ddcpg"], papers()
    panels = grid.plotted["figure15"]["panels"]
    assert [panel["title"] for panel in panels] == ["Median", "IQM", "Mean", "Optimality gap"]
    assert panels[0]["rows"] == [NAMES[m] for m in methods]
    for place, method in enumerate(methods):
        scores = grid.normalised(method)
        means, every = [mean(s) for s in scores.values()], [s for of_game in scores.values() for s in of_game]
        wanted = [middle(means), middle_half(every), mean(means), 1 - mean([min(s, 1.0) for s in every])]
        for panel, value in zip(panels, wanted, strict=True):
            assert_bar(panel, place, value)
        of_paper = [
            (printed["test", "return", game, method][0] - low) / (high - low) for game, (low, high) in RANGES.items()
        ]
        for panel, value in ((panels[0], middle(of_paper)), (panels[2], mean(of_paper))):
            star = [line for line in panel["lines"] if line["marker"] == "*"][place]
            assert star["x"] == [pytest.approx(value)]
            assert star["y"] == [place]
    assert not [line for panel in (panels[1], panels[3]) for line in panel["lines"] if line["marker"] == "*"]


def assert_bar(panel: dict[str, Any], place: int, value: float) -> None:
    """The bar is an interval around the black mark of the value."""
    low, high = panel["bars"][place]
    mark = [line for line in panel["lines"] if line["colour"] == "black" and len(line["x"]) == 2][place]
    assert mark["x"] == pytest.approx([value, value])
    assert mean(mark["y"]) == pytest.approx(place)
    assert low < value < high
    assert high - low < 0.3


def test_figure_16(grid: Built) -> None:
    (panel,) = grid.plotted["figure16"]["panels"]
    assert panel["rows"] == ["DCPG", "DDCPG"]
    assert panel["xlabel"] == "P(better than PPG) on unseen levels"
    for place, method in enumerate(("dcpg", "ddcpg")):
        chances = []
        for game in GAMES:
            pairs = [
                (x, y) for x in grid.finals(method, game, "test") for y in grid.finals("ppg", game, "test")
            ]  # fmt: skip
            chances.append(mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs]))
        assert_bar(panel, place, mean(chances))


def test_profiles(grid: Built) -> None:
    (panel,) = grid.plotted["profiles"]["panels"]
    scores = {m: [s for of_game in grid.normalised(m).values() for s in of_game] for m in METHODS}
    everything = [s for of_method in scores.values() for s in of_method]
    assert [line["label"] for line in panel["lines"]] == [NAMES[m] for m in METHODS]
    for place, (method, line) in enumerate(zip(METHODS, panel["lines"], strict=True)):
        assert (line["x"][0], line["x"][-1]) == pytest.approx((min(everything), max(everything)))
        # a threshold on a score itself may fall on either side of it by rounding
        for x, y in list(zip(line["x"], line["y"], strict=True))[1:-1]:
            assert y == pytest.approx(mean([float(s > x) for s in scores[method]]))
        for (low, high), y in zip(panel["bands"][place].values(), line["y"], strict=True):
            assert low - 1e-12 <= y <= high + 1e-12


def test_sample_efficiency(grid: Built) -> None:
    (panel,) = grid.plotted["sample-efficiency"]["panels"]
    assert [line["label"] for line in panel["lines"]] == [NAMES[m] for m in METHODS]
    for place, (method, line) in enumerate(zip(METHODS, panel["lines"], strict=True)):
        assert line["x"] == [16_384, 501 * 16_384, 1001 * 16_384, PAPER_STEPS]
        wanted = [middle_half([s for g in grid.normalised(method, row).values() for s in g]) for row in range(4)]
        assert line["y"] == pytest.approx(wanted)
        for (low, high), y in zip(panel["bands"][place].values(), wanted, strict=True):
            assert low < y < high


def test_the_page_holds_the_same_scores(grid: Built) -> None:
    data = json.loads((grid.out / "report.json").read_text())
    assert data["runs"] == {"finished": 720, "unfinished": 0, "problems": len(COUNTS) + 1}
    assert [m["label"] for m in data["methods"]] == list(METHODS)
    assert [g["id"] for g in data["games"]] == GAMES
    for split in ("train", "test"):
        for method, found in data["headline"]["normalised"][split].items():
            value, std = grid.score(method, split)
            assert (found["value"], found["std"]) == pytest.approx((value, std))
            assert found["low"] < value < found["high"]
    gaps = {(row["game"], row["label"]): row for row in data["gaps"]}
    for game in GAMES:
        for method in METHODS:
            ends = zip(grid.finals(method, game, "train"), grid.finals(method, game, "test"), strict=True)
            each = [train - test for train, test in ends]
            assert (gaps[game, method]["gap"], gaps[game, method]["std"]) == pytest.approx(
                (mean(each), deviation(each))
            )
    assert data["figures"] == [name for name in making.NAMES if name in FIGURES]
    assert "</script" not in json.dumps(data)


# -- the command

Command = Callable[..., tuple[int, str, str, making.Report | None]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`dcpg report ...`: exit code, what it printed, and the report itself."""
    made: list[making.Report] = []
    original = making.make

    def keep(*given: Any) -> making.Report:
        made.append(original(*given))
        return made[-1]

    monkeypatch.setattr(making, "make", keep)

    def run(*arguments: str | Path) -> tuple[int, str, str, making.Report | None]:
        made.clear()
        monkeypatch.setattr(sys, "argv", ["dcpg", "report", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err, made[-1] if made else None

    return run


def few(root: Path, methods: tuple[str, ...] = ("ppo", "dcpg"), seeds: tuple[int, ...] = (0, 1, 2)) -> list[Run]:
    """Small finished runs on two games."""
    return [
        some(root / f"{game}-{method}-{seed}", method, game, seed)
        for method in methods for game in ("bigfish", "maze") for seed in seeds
    ]  # fmt: skip


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_names_make_these_files_and_no_others(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    code, out, err, report = command(tmp_path / "runs", "table1", "figure4", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert files_in(tmp_path / "out") == [
        "figures/figure4.pdf", "figures/figure4.png", "tables/table1.csv", "tables/table1.md", "tables/table1.tex",
    ]  # fmt: skip
    assert report is not None
    assert (report.tables, report.figures, report.version) == (["table1"], ["figure4"], "")
    assert "8 runs (2,048 steps, preset tiny, 200 training levels): 8 finished, 0 unfinished." in out
    assert "Tables: table1\nFigures: figure4\n" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["figure2"], "These runs do not allow figure2;"),
        (["table1", "table3", "figure2"], "These runs do not allow table3, figure2;"),
        (["tabel1"], "Unknown run, table or figure 'tabel1'; did you mean 'table1'?"),
        (["figure99"], "Unknown run, table or figure 'figure99'"),
    ],
)
def test_a_name_that_cannot_be_made(words: list[str], sentence: str, tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo",), (0,))
    code, out, err, _ = command(tmp_path / "runs", *words, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.startswith(f"dcpg: {sentence}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_folders_without_runs(tmp_path: Path, command: Command) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for words, sentence in (
        ([tmp_path / "empty"], f"{tmp_path / 'empty'} holds no run: no config.json at or below it."),
        ([tmp_path / "nowhere"], f"There is no directory {tmp_path / 'nowhere'}."),
        ([tmp_path / "file"], f"There is no directory {tmp_path / 'file'}."),
        (["table1"], "Name at least one run or folder of runs"),
    ):
        code, out, err, _ = command(*words, "--out", tmp_path / "out")
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1
    run = some(tmp_path / "one", "dcpg").path
    (run / "eval.jsonl").write_text("")
    code, _, err, _ = command(run, "--out", tmp_path / "out")
    assert (code, err) == (2, "dcpg: 1 runs have no evaluation yet; come back when they have.\n")
    (run / "config.json").write_text("{}")
    code, _, err, _ = command(run, "--out", tmp_path / "out")
    assert code == 2
    assert err.startswith("dcpg: No run can be used: ")
    assert not (tmp_path / "out").exists()


# -- runs that cannot be trusted


def edit(name: str, change: Callable[[list[Row]], Any]) -> Callable[[Path], None]:
    """Change the rows of a file; text that comes back is written as it is."""

    def damage(run: Path) -> None:
        rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
        text = change(rows)
        (run / name).write_text(text if text is not None else "".join(json.dumps(row) + "\n" for row in rows))

    return damage


def put(number: int, **values: Any) -> Callable[[Path], None]:
    return edit("eval.jsonl", lambda rows: rows[number].update(values))


def configured(change: Callable[[Row], Any]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        plain = json.loads((run / "config.json").read_text())
        change(plain)
        (run / "config.json").write_text(json.dumps(plain))

    return damage


def lines(rows: list[Row]) -> list[str]:
    return [json.dumps(row) + "\n" for row in rows]


def measured_wrongly(run: Path) -> None:
    configured(lambda c: c.update(analyse=["stiffness"]))(run)
    row = {"rollout": 1, "steps": 128, "stiffness": "stiff", "stiffness_sign_free": 0, "stiffness_sign_agreement": 0}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")


LEFT_OUT = [
    (put(1, train_return="high"), "left out: eval.jsonl, row 2: train_return is 'high', not a number."),
    (put(1, test_true_value=None), "left out: eval.jsonl, row 2: test_true_value is None, not a number."),
    (put(2, test_return=math.nan), "left out: eval.jsonl, row 3: test_return is nan, not a number."),
    (put(0, train_predicted_value=math.inf), "row 1: train_predicted_value is inf, not a number."),
    (put(0, train_predicted_value=10**400), "row 1: train_predicted_value is 1000000000"),
    (put(2, test_returns=[1e300, 1e300, 1e300], test_return=1e300), "row 3: test_return is 1e+300, not a number."),
    (put(2, train_return=True), "row 3: train_return is True, not a number."),
    (put(2, train_return=17.25), "left out: eval.jsonl, row 3: train_return is 17.25, but its episodes' mean is "),
    (put(2, test_returns=[]), "row 3: test_returns and test_levels are not lists of equal length."),
    (put(2, test_levels=[1]), "row 3: test_returns and test_levels are not lists of equal length."),
    (put(2, test_levels=[1, 2, -3]), "row 3: test_levels are not level seeds."),
    (put(2, test_levels=[1, 2, 2**31]), "row 3: test_levels are not level seeds."),
    (put(2, test_levels=[1, 2, True]), "row 3: test_levels are not level seeds."),
    (edit("eval.jsonl", lambda rows: rows[2].pop("test_return") and None), "row 3: test_return is missing."),
    (edit("eval.jsonl", lambda rows: rows[2].pop("train_return") and None), "row 3: train_return is missing."),
    (put(1, steps=1.5), "row 2: steps is 1.5, not a number of steps."),
    (put(1, steps=64), "left out: eval.jsonl: steps do not grow from row to row."),
    (put(1, steps=2048), "left out: eval.jsonl: steps do not grow from row to row."),
    (put(2, steps=4096), "left out: eval.jsonl: an evaluation at 4,096 steps, but the run is one of 2,048."),
    (configured(lambda c: c.update(method="dcgp")), "left out: config.json: Unknown method 'dcgp'"),
    (configured(lambda c: c.update(method=["dcpg"])), "left out: config.json is not a run's configuration"),
    (configured(lambda c: c.update(game="mase")), "left out: config.json: Unknown game 'mase'; did you mean 'maze'?"),
    (configured(lambda c: c.update(preset="huge")), "left out: Unknown preset 'huge'"),
    (configured(lambda c: c.update(schema=3)), "left out: config.json has schema 3; this program reads schema 5."),
    (configured(lambda c: c["algorithm"].update(gamma=10**400)), "left out: config.json is not a run's configuration"),
    (configured(lambda c: c.pop("seed")), "left out: config.json: seed is missing."),
    (lambda run: (run / "config.json").write_text("{" * 9), "config.json cannot be read"),
    (lambda run: (run / "config.json").write_text("[" * 100_000), "config.json is not a run's configuration"),
    (lambda run: (run / "config.json").write_text("[]"), "config.json is not a run's configuration."),
    (measured_wrongly, "left out: metrics.jsonl, measurement 1: stiffness is 'stiff', not a number."),
]  # fmt: skip
UNFINISHED = [
    (edit("eval.jsonl", lambda rows: "".join(lines(rows))[:-9]), "eval.jsonl is torn: 1 of 3 lines were passed over"),
    (edit("eval.jsonl", lambda rows: "".join(lines(rows)).rstrip("\n")), "is torn: 1 of 3 lines were passed over"),
    (
        edit("eval.jsonl", lambda rows: lines(rows)[0] + lines(rows)[1][:50] + "\n" + lines(rows)[2]),
        "eval.jsonl is torn: 2 of 3 lines were passed over",
    ),
    (edit("eval.jsonl", lambda rows: lines(rows)[0] + "\n" + lines(rows)[2]), "2 of 3 lines were passed over"),
    (edit("eval.jsonl", lambda rows: lines(rows)[0] + "7\n"), "eval.jsonl is torn: 1 of 2 lines were passed over"),
    (edit("eval.jsonl", lambda rows: lines(rows)[0] + "\x00\x01\n"), "1 of 2 lines were passed over"),
]
NOT_BEGUN = [
    (edit("eval.jsonl", lambda rows: ""), "no evaluation yet"),
    (lambda r: (r / "eval.jsonl").unlink(), "no evaluation yet"),
]


def damaged_copies(runs: Path, cases: list[tuple[Callable[[Path], Any], str]]) -> dict[Path, str]:
    """Runs of DCPG on BigFish, a seed a case, each damaged in its way."""
    found = {}
    for seed, (damage, words) in enumerate(cases, 10):
        path = some(runs / f"damaged-{seed}", "dcpg", "bigfish", seed, level=90.0).path
        damage(path)
        found[path] = words
    return found


@pytest.mark.parametrize(("cases", "unfinished"), [(LEFT_OUT, 0), (UNFINISHED, len(UNFINISHED)), (NOT_BEGUN, 0)])
def test_damaged_runs_are_told_and_not_counted(
    cases: list[tuple[Callable[[Path], Any], str]], unfinished: int, tmp_path: Path, command: Command
) -> None:
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    damaged = damaged_copies(tmp_path / "runs", cases)
    code, out, err, report = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert report is not None
    told = {problem.path: problem.text for problem in report.problems}
    assert len(report.problems) == len(cases)
    for path, words in damaged.items():
        assert words in told[path]
        assert "\n" not in told[path]
        assert f"note: {path}: {told[path]}\n" in out
    assert f"8 finished, {unfinished} unfinished." in out
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert_cell(cell, Figure(mean(finals), deviation(finals), "2", papers()["test", "return", "bigfish", "dcpg"]))
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert (f"{unfinished} unfinished runs are not counted." in text) == bool(unfinished)


WHOSE = {"method": "ddcpg", "game": "bigfish"}
GOOD_LEVELS = WHOSE | {
    "analysis": "levels",
    "steps": 2048,
    "train": {"levels": [1], "returns": [1.0]},
    "test": {"levels": [7], "returns": [2.0]},
}
GOOD_ACTIONS = WHOSE | {
    "analysis": "ood-actions",
    "mean": 1,
    "std": 1,
    "raw_mean": 1,
    "raw_std": 1,
    "transitions": 5,
    "left_out": 0,
    "steps": 2048,
}
GARBAGE: list[tuple[str, str | Row, str]] = [
    ("levels", "not JSON", "Expecting value"),
    ("levels", "[]", "indices"),
    ("levels", "[" * 100_000, "recursion"),
    ("levels", {"train": {"levels": [1], "returns": []}}, "train has not one return a level"),
    ("levels", {"train": {"levels": [-1], "returns": [1]}}, "train has not one return a level"),
    ("levels", {"test": {"levels": [1], "returns": [math.nan]}}, "test returns is nan, not a number."),
    ("levels", {"test": None}, "subscriptable"),
    ("levels", {"seed": 99}, "it is of another run"),
    ("levels", {"steps": 1024}, "it is of the weights at 1,024 steps"),
    ("ood-actions", json.dumps({"mean": 1}), "analysis"),
    ("ood-actions", {"game": "maze"}, "it is of another run"),
    ("ood-actions", {"transitions": 0}, "no transition was counted"),
    ("ood-actions", {"std": -1}, "std is -1"),
    ("ood-actions", {"raw_mean": 10**400}, "raw_mean is 1000"),
]


def test_analyses_that_are_garbage_are_passed_over(tmp_path: Path, command: Command) -> None:
    some(tmp_path / "runs" / "ppo", "ppo")
    paths = []
    good = {"levels": GOOD_LEVELS, "ood-actions": GOOD_ACTIONS}
    for seed, (name, bad, _) in enumerate(GARBAGE):
        run = some(tmp_path / "runs" / f"ddcpg-{seed}", "ddcpg", seed=seed).path
        (run / "analysis").mkdir()
        text = bad if isinstance(bad, str) else json.dumps(good[name] | {"seed": seed} | bad)
        (run / "analysis" / f"{name}.json").write_text(text)
        paths.append(run)
    code, out, _, report = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    told = {problem.path: problem.text for problem in report.problems}
    assert sorted(told) == sorted(paths)
    for path, (name, _, words) in zip(paths, GARBAGE, strict=True):
        assert told[path].startswith(f"analysis/{name}.json was passed over (")
        assert words in told[path]
        assert f"note: {path}: {told[path]}\n" in out
    assert all(record.analyses == {} for record in report.board.records)
    assert read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DDCPG"]["seeds"] == str(len(GARBAGE))
    assert command(tmp_path / "runs", "table10", "--out", tmp_path / "out")[0] == 2
    # and what is none is kept
    for name, kept in good.items():
        (paths[0] / "analysis" / f"{name}.json").write_text(json.dumps(kept | {"seed": 0}))
    (record, *_), notes = read([paths[0]])
    assert notes == []
    assert record.analyses == {name: kept | {"seed": 0} for name, kept in good.items()}


@pytest.mark.parametrize("other", [{}, {"threads": 1}, {"settings": {"evaluation.every": 4, "analyse": "stiffness"}}])
def test_a_seed_counts_once(other: dict[str, Any], tmp_path: Path, command: Command) -> None:
    """However often it was trained, and on whatever machine."""
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    again = some(tmp_path / "runs" / "z-again", "dcpg", "bigfish", 1, level=50.0, **other)
    code, out, _, report = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    (problem,) = report.problems
    assert problem.path == again.path
    assert problem.text == (
        f"left out: the same method, game, seed and settings as {tmp_path / 'runs' / 'bigfish-dcpg-1'}"
    )
    assert f"note: {again.path}: left out: the same" in out
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert (cell["seeds"], float(cell["mean"])) == ("2", pytest.approx(mean(finals)))


def test_of_two_runs_of_a_seed_the_furthest_is_taken(tmp_path: Path) -> None:
    edit("eval.jsonl", lambda rows: rows.pop() and None)(some(tmp_path / "a", "dcpg").path)
    some(tmp_path / "b", "dcpg")
    found, problems = read([tmp_path])
    assert [record.path.name for record in found] == ["b"]
    assert [problem.path.name for problem in problems] == ["a"]
    measured_too = some(tmp_path / "c", "dcpg", settings={"analyse": "stiffness"}).path
    config = configuration("dcpg", "bigfish", 0, preset="tiny")
    (measured_too / "metrics.jsonl").write_text("".join(lines(stiffness_rows(config, random.Random(0)))))
    assert [record.path.name for record in read([tmp_path])[0]] == ["c"]


def test_a_run_is_read_once_however_it_is_named(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo",), (0,))
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "alias").symlink_to(tmp_path / "runs" / "maze-ppo-0")
    given = (tmp_path / "runs", tmp_path / "runs" / "maze-ppo-0", tmp_path / "runs" / "alias")
    code, out, _, report = command(*given, "table1", "--out", tmp_path / "out")
    assert code == 0
    assert "2 runs (" in out
    assert report is not None
    assert report.problems == []


def test_other_steps_and_other_levels_are_not_mixed_in(tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    for seed in (2, 3):
        some(tmp_path / "longer" / str(seed), "dcpg", "bigfish", seed, level=90.0, steps=4096)
    some(tmp_path / "levels", "dcpg", "bigfish", 4, level=90.0, settings={"levels.start": 500})
    some(tmp_path / "listed", "dcpg", "bigfish", 5, level=90.0, settings={"levels.seeds": "3,5,9"})
    some(tmp_path / "hard", "dcpg", "bigfish", 6, level=90.0, settings={"env.mode": "hard"})
    code, out, _, report = command(tmp_path, "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    told = {p.path.name: p.text for p in report.problems}
    sizes = "preset tiny, 200 training levels"
    assert told == {
        "longer": f"2 runs are not compared with the others: 4,096 steps, {sizes}",
        "levels": f"1 run is not compared with the others: 2,048 steps, {sizes} (levels.start=500)",
        "listed": "1 run is not compared with the others: 2,048 steps, preset tiny, 3 training levels",
        "hard": f"1 run is not compared with the others: 2,048 steps, {sizes} (env.mode=hard)",
    }
    assert all(f"note: {p.path}: {p.text}" in out for p in report.problems)
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert (cell["seeds"], float(cell["mean"])) == ("2", pytest.approx(mean(finals)))


def test_a_variant_has_a_label_of_its_own(tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    for seed in (0, 1, 2):
        some(tmp_path / "variant" / str(seed), "dcpg", "bigfish", seed, level=90.0, settings={"algorithm.N_pi": 16})
    some(tmp_path / "augmented", "dcpg", "bigfish", 0, level=90.0, settings={"augment": "ucb"})
    code, _, _, report = command(tmp_path, "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    assert report.problems == []
    assert report.board.labels == ["ppo", "dcpg", "dcpg [N_pi=16]", "dcpg [augment=ucb]"]
    assert [len(report.board.runs(label, "bigfish")) for label in report.board.labels] == [2, 2, 3, 1]
    cells = read_csv(tmp_path / "out" / "tables" / "table1.csv")
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert (cells["BigFish", "DCPG"]["seeds"], float(cells["BigFish", "DCPG"]["mean"])) == (
        "2",
        pytest.approx(mean(finals)),
    )
    assert not [column for _, column in cells if "[" in column]


def test_a_preset_is_no_disguise_for_a_variant(tmp_path: Path) -> None:
    """The same sizes by another preset, whose N_pi is another: its run is not plain DCPG here."""
    small = PRESET_SIZES | {"machine.threads": 1}
    for seed in (0, 1):
        some(tmp_path / str(seed), "dcpg", seed=seed)
    write(
        tmp_path / "other",
        one := resolve("dcpg", "bigfish", seed=2, settings=small),
        rows_of(one, random.Random(0), rollouts=(1, 16)),
    )
    report = making.make([tmp_path], tmp_path / "out", ["table1"])
    assert one.algorithm.N_pi == 32
    assert len(report.board.runs("dcpg", "bigfish")) == 2
    (problem,) = report.problems
    assert problem.path.name == "other"
    assert "1 run is not compared with the others: 2,048 steps, preset paper" in problem.text


PRESET_SIZES: dict[str, Any] = {
    "steps": 2048, "rollout_length": 16, "env.num_envs": 8, "env.frame_size": 32, "network.channels": (4, 8, 8),
    "network.features": 32, "evaluation.episodes": 8, "evaluation.every": 16,
}  # fmt: skip


def test_seeds_that_are_missing_and_runs_that_go_on(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo",), (0, 1, 2))
    kept = few(tmp_path / "runs", ("dcpg",), (0, 2))
    for seed in (3, 4):
        edit("eval.jsonl", lambda rows: rows.pop() and None)(
            some(tmp_path / "runs" / f"going-{seed}", "dcpg", "maze", seed, level=90.0).path
        )
    shutil.rmtree(kept[0].path)  # bigfish, seed 0
    code, out, _, report = command(tmp_path / "runs", "table1", "table7", "--out", tmp_path / "out")
    assert code == 0
    assert "11 runs (2,048 steps, preset tiny, 200 training levels): 9 finished, 2 unfinished." in out
    for name, split in (("table1", "test"), ("table7", "train")):
        cells = read_csv(tmp_path / "out" / "tables" / f"{name}.csv")
        one, two = kept[1].rows[-1][f"{split}_return"], [r.rows[-1][f"{split}_return"] for r in kept[2:]]
        printed = papers()
        assert_cell(cells["BigFish", "DCPG"], Figure(one, None, "1", printed[split, "return", "bigfish", "dcpg"]))
        wanted = Figure(mean(two), deviation(two), "2", printed[split, "return", "maze", "dcpg"])
        assert_cell(cells["Maze", "DCPG"], wanted)
        assert cells["Maze", "PPO"]["seeds"] == "3"
        assert_cell(cells["Maze", "PPG"], Figure(None, None, "0", printed[split, "return", "maze", "ppg"]))
        assert cells[SCORE, "DCPG"]["seeds"] == "1-2"
        assert cells[SCORE, "DCPG"]["std"] == ""  # a seed is not there on every game
        text = (tmp_path / "out" / "tables" / f"{name}.md").read_text()
        assert "- 2 unfinished runs are not counted." in text
        assert f"| Maze | {mean_of_text(cells['Maze', 'PPO'])} (3) / " in text
    assert report is not None
    curve = report.board.curve("dcpg", "maze", "test_return")  # shows what there is, and of how many
    assert curve is not None
    assert curve.seeds.tolist() == [4, 4, 2]


def mean_of_text(cell: dict[str, str]) -> str:
    return f"{float(cell['mean']):.1f} ± {float(cell['std']):.1f}"


def test_a_method_that_lacks_games_is_left_out_of_the_score_and_named(tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo", "ppg", "dcpg"), (0, 1))
    for seed in (0, 1):
        some(tmp_path / "runs" / f"ddcpg-{seed}", "ddcpg", "bigfish", seed)
    assert command(tmp_path / "runs", "table1", "--out", tmp_path / "out")[0] == 0
    cells = read_csv(tmp_path / "out" / "tables" / "table1.csv")
    finals = {(r.method, r.game, r.seed): r.rows[-1]["test_return"] for r in runs}
    ppo = {game: mean([finals["ppo", game, k] for k in (0, 1)]) for game in ("bigfish", "maze")}
    for method in ("ppo", "ppg", "dcpg"):
        seeds = [100 * mean([finals[method, game, k] / ppo[game] for game in ppo]) for k in (0, 1)]
        assert float(cells[SCORE, NAMES[method]]["mean"]) == pytest.approx(mean(seeds))
        assert float(cells[SCORE, NAMES[method]]["std"]) == pytest.approx(deviation(seeds))
    assert (cells[SCORE, "DDCPG"]["mean"], cells["BigFish", "DDCPG"]["seeds"]) == ("", "2")
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert "PPO-normalised score over BigFish, Maze, divided by these PPO runs (unseen levels)." in text
    assert "Without a finished run on all of these games: DDCPG." in text


def test_a_run_that_began_with_trained_weights_is_none_of_the_method(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "plain", "dcpg")
    configured(lambda c: c.update(init="runs/other"))(some(tmp_path / "runs" / "begun", "dcpg", seed=1).path)
    (tmp_path / "runs" / "config.json").write_text('{"of": "some other program"}')
    report = making.make([tmp_path / "runs"], tmp_path / "out", ["table1"])
    assert report.board.labels == ["dcpg", "dcpg [init]"]
    assert report.problems == []
    assert read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]["seeds"] == "1"


# -- PPO


def test_without_ppo_there_is_no_score_and_a_sentence_says_why(tmp_path: Path) -> None:
    few(tmp_path / "runs", ("ppg", "dcpg", "separate-dcpg"), (0, 1))
    made = making.make([tmp_path / "runs"], tmp_path / "out", pictures=False)
    assert made.tables == ["table1", "table7"]
    why = "No PPO-normalised score: there is no finished PPO run of the same setting to divide by."
    for name in made.tables:
        assert SCORE not in {row for row, _ in read_csv(tmp_path / "out" / "tables" / f"{name}.csv")}
        for ending in ("md", "tex"):
            text = (tmp_path / "out" / "tables" / f"{name}.{ending}").read_text()
            assert why in text
            assert text.count(SCORE) == 1
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["headline"]["normalised"] == {"test": {}, "train": {}}
    assert data["headline"]["notes"] == {"test": [why], "train": [why]}
    (entry,) = [entry for entry in made.missing if "PPO runs of the same setting" in entry.what]
    assert len(entry.commands) == 4


def test_without_ppo_at_the_papers_size_the_papers_is_used_and_named(tmp_path: Path) -> None:
    finals: dict[str, dict[str, list[float]]] = {}
    for game in ("bigfish", "maze"):
        for method in ("dcpg", "ppg"):
            for seed in (0, 1):
                run = some(tmp_path / "runs" / f"{game}-{method}-{seed}", method, game, seed, preset="paper")
                finals.setdefault(method, {}).setdefault(game, []).append(run.rows[-1]["test_return"])
    making.make([tmp_path / "runs"], tmp_path / "out", ["table1", "table11"])
    printed = papers()
    ppo = {game: printed["test", "return", game, "ppo"][0] for game in ("bigfish", "maze")}
    cells = read_csv(tmp_path / "out" / "tables" / "table1.csv")
    for method, games in finals.items():
        value = 100 * mean([mean(found) / ppo[game] for game, found in games.items()])
        std = deviation([100 * mean([found[k] / ppo[game] for game, found in games.items()]) for k in (0, 1)])
        # the paper's score is of all games; over these two it follows from the returns that it prints
        of_paper = 100 * mean([printed["test", "return", game, method][0] / ppo[game] for game in games])
        wanted = Figure(value, std, "2", (of_paper, None))
        assert_cell(cells[SCORE, NAMES[method]], wanted)
        assert_cell(read_csv(tmp_path / "out" / "tables" / "table11.csv")["unseen levels", NAMES[method]], wanted)
    assert (cells[SCORE, "PPO"]["mean"], cells[SCORE, "PPO"]["paper mean"]) == ("", "100.0")
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert "PPO-normalised score over BigFish, Maze, divided by the paper's PPO (unseen levels)." in text


def test_a_ppo_mean_that_is_not_positive_gives_no_score(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppg", "ppg+dr"), (0,))
    few(tmp_path / "runs", ("ppo",), (0, 1))
    unseen = []
    for seed in (0, 1):

        def sink(rows: list[Row]) -> None:
            rows[-1]["test_returns"] = [-r for r in rows[-1]["test_returns"]]
            rows[-1]["test_return"] = -rows[-1]["test_return"]
            unseen.append(rows[-1]["test_return"])

        edit("eval.jsonl", sink)(tmp_path / "runs" / f"maze-ppo-{seed}")
    why = (
        f"No PPO-normalised score: PPO's mean return on 'maze' is {mean(unseen):g}; a ratio to it says nothing unless "
        "it is positive."
    )
    code, _, _, _ = command(tmp_path / "runs", "table1", "table3", "table7", "--out", tmp_path / "out")
    assert code == 0
    tables = {name: read_csv(tmp_path / "out" / "tables" / f"{name}.csv") for name in ("table1", "table3", "table7")}
    assert {row for row, _ in tables["table1"]} == {"BigFish", "Maze"}
    assert float(tables["table1"]["Maze", "PPO"]["mean"]) == pytest.approx(mean(unseen))
    assert {row for row, _ in tables["table3"]} == {"training levels"}
    assert {row for row, _ in tables["table7"]} == {"BigFish", "Maze", SCORE}
    for name, there in (("table1", True), ("table3", True), ("table7", False)):
        assert (f"- {why}\n" in (tmp_path / "out" / "tables" / f"{name}.md").read_text()) == there
    code, _, err, _ = command(tmp_path / "runs", "table11", "--out", tmp_path / "out")
    assert code == 2
    assert err.count("\n") == 1


# -- what is missing


def parsed(line: str) -> Config:
    """The configuration that a `dcpg train` command means."""
    program, verb, method, *rest = shlex.split(line)
    assert (program, verb) == ("dcpg", "train")
    options: dict[str, str] = {}
    pairs = []
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        if name == "--set":
            pairs.append(value)
        else:
            assert name in ("--game", "--preset", "--steps", "--seed", "--out")
            assert name not in options
            options[name] = value
    steps = int(options["--steps"]) if "--steps" in options else None
    return resolve(
        method, options["--game"], preset=options["--preset"], steps=steps, seed=int(options["--seed"]),
        settings=parse_settings(pairs),
    )  # fmt: skip


BOARDS: dict[str, dict[str, Any]] = {
    "other levels": {"settings": {"levels.seeds": "3,5,9", "evaluation.episodes": 5}},
    "all levels": {"settings": {"levels.count": 0}},
    # less than one rollout of the preset it is named after
    "own sizes": {"preset": "paper", "settings": PRESET_SIZES},
}


@pytest.mark.parametrize("name", BOARDS)
def test_commands_for_missing_runs_lead_to_the_same_setting(name: str, tmp_path: Path) -> None:
    more = BOARDS[name]
    for method, game, seed in (
        ("dcpg", "maze", 0),
        ("dcpg", "maze", 1),
        ("dcpg", "bigfish", 0),
        ("dcpg+fi", "maze", 1),
    ):
        some(tmp_path / f"{game} {method} {seed}", method, game, seed, **more)
    variant = {**more, "settings": {**more.get("settings", {}), "algorithm.gamma": 0.99}}
    for seed in (0, 1):
        some(tmp_path / f"variant {seed}", "dcpg", "bigfish", seed, **variant)
    once = {**more, "settings": {**more.get("settings", {}), "algorithm.gamma": 0.9}}
    some(tmp_path / "tried once", "dcpg", "bigfish", 0, **once)
    edit("eval.jsonl", lambda rows: rows.pop() and None)(tmp_path / "maze dcpg 1")
    records, problems = read([tmp_path])
    board = making.choose(records, problems)
    assert problems == []
    found = {entry.what: entry.commands for entry in missing(board, Stiff(records))}
    commands = [line for lines in found.values() for line in lines]
    trainings = [line for line in commands if line.startswith("dcpg train ")]
    holes = [line for what, lines in found.items() if "runs of the grid" in what for line in lines]
    assert set(board.labels) == {"dcpg", "dcpg [gamma=0.9]", "dcpg [gamma=0.99]", "dcpg+fi"}
    asked_for = [(c.method, c.algorithm.gamma, c.game, c.seed) for c in map(parsed, holes)]
    assert sorted(asked_for) == [  # a variant that was tried once is no part of the grid
        ("dcpg", 0.99, "maze", 0), ("dcpg", 0.99, "maze", 1), ("dcpg", 0.999, "bigfish", 1),
        ("dcpg+fi", 0.999, "bigfish", 0), ("dcpg+fi", 0.999, "bigfish", 1), ("dcpg+fi", 0.999, "maze", 0),
    ]  # fmt: skip
    configs = [parsed(line) for line in trainings if "analyse=stiffness" not in line]
    assert all(setting_of(config) == board.setting for config in configs)
    asked = {config.method for config in configs}
    everyone = {"ppo", "ucb-drac", "plr", "daac", "ppg", "ddcpg", "dcpg+f", "dcpg+i", "separate-dcpg", "dppg"}
    # prioritised levels need a finite set of them
    assert asked - {"dcpg", "dcpg+fi"} == everyone - ({"plr"} if name == "all levels" else set())
    stiff = [line for line in trainings if "analyse=stiffness" in line]
    assert len(stiff) == 2 * 2 * len(COUNTS)
    counted = set()
    for line in stiff:
        config = parsed(line)
        assert setting_of(config).rest == board.setting.rest
        assert setting_of(config).steps == board.setting.steps
        assert config.analyse == ("stiffness",)
        counted.add((config.method, config.game, setting_of(config).level_count))
    assert len(counted) == len(stiff)
    others = [shlex.split(line) for line in commands if not line.startswith("dcpg train ")]
    assert all((Path(words[-1]) / "config.json").is_file() for words in others)
    assert {tuple(words[1:-1]) for words in others} == {("resume",), ("analyse", "levels"), ("record",)}
    assert [words[-1] for words in others if words[1] == "resume"] == [str(tmp_path / "maze dcpg 1")]


def test_stiffness_is_asked_for_in_the_setting_that_was_measured(grid: Built) -> None:
    (entry,) = [entry for entry in grid.missing if "Figures 2 and 7" in entry.what]
    games = [game for game in GAMES if game not in STIFF_GAMES]
    assert len(entry.commands) == 2 * len(games) * len(COUNTS) - 3
    for line in (entry.commands[0], entry.commands[-1]):
        config = parsed(line)
        assert (config.steps, config.game in games) == (8_000_000, True)
        assert setting_of(config).rest == setting_of(resolve("ppg", "maze")).rest


def test_table_10_is_asked_for_where_it_was_not_measured(tmp_path: Path) -> None:
    run = some(tmp_path / "a run", "ddcpg")
    found, problems = read([tmp_path])
    board = making.choose(found, problems)
    entries = {entry.what: entry.commands for entry in missing(board, Stiff(found))}
    commands = entries["Table 10: wrong actions that discriminators believe"]
    assert commands == [f"dcpg analyse ood-actions {shlex.quote(str(run.path))}"]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    method=st.sampled_from(list(METHODS)),
    game=st.sampled_from(GAMES),
    preset=st.sampled_from(["paper", "laptop", "tiny"]),
    steps=st.none() | st.integers(20_000, 30_000_000),
    seed=st.integers(0, 2**31),
    more=st.fixed_dictionaries(
        {},
        optional={
            "algorithm.gamma": st.floats(0.5, 1.0),
            "algorithm.learning_rate": st.floats(1e-9, 1.0),
            "algorithm.N_pi": st.sampled_from([4, 8, 16]),
            "augment": st.sampled_from(["ucb", "crop", "none"]),
            "levels.start": st.integers(0, 10_000),
            "levels.count": st.integers(1, 500),
            "levels.seeds": st.lists(st.integers(0, 2**31 - 2), max_size=5, unique=True).map(tuple),
            "network.channels": st.lists(st.integers(1, 64), min_size=1, max_size=4).map(tuple),
            "evaluation.episodes": st.integers(1, 200),
            "machine.compile": st.booleans(),
            "machine.threads": st.integers(1, 8),
            "analyse": st.sampled_from([(), ("stiffness",), ("stiffness", "values")]),
            "checkpoints.minutes": st.floats(0.1, 1e6),
        },
    ),
)
def test_a_command_means_the_configuration_it_was_made_from(
    method: str, game: str, preset: str, steps: int | None, seed: int, more: dict[str, Any]
) -> None:
    try:
        config = resolve(method, game, preset=preset, steps=steps, seed=seed, settings=more)
    except BadInput:
        assume(False)
    assert parsed(train_command(config)) == config
    assert parsed(train_command(config, Path("a folder/with 'quotes'"))) == config


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_command_is_short_and_means_it(method: str) -> None:
    config = resolve(method, "miner", seed=7)
    assert train_command(config) == f"dcpg train {method} --game miner --preset paper --seed 7"
    assert parsed(train_command(config)) == config


# -- a report over an older one


def test_what_is_no_longer_possible_is_removed_and_nothing_else(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "ppo", "ppo")
    out = tmp_path / "out"
    older = [f"tables/{name}.{ending}" for name in TABLES for ending in ("csv", "md", "tex")]
    older += [f"figures/{name}.{ending}" for name in FIGURES for ending in ("png", "pdf")]
    mine = ["tables/mine.csv", "tables/table1.txt", "tables/table12.csv", "figures/figure2.svg", "figures/mine.png",
            "figures/table1.csv", "table1.csv", "figure2.png", "notes/table3.csv", "README"]  # fmt: skip
    for name in (*older, *mine):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("older")
    first = making.make([tmp_path / "runs"], out, ["table1"])
    assert files_in(out) == sorted([*older, *mine])
    assert first.tables == ["table1"]
    second = making.make([tmp_path / "runs"], out, pictures=False)
    figures = [name for name in older if name.startswith("figures/")]
    tables = [f"tables/{name}.{ending}" for name in ("table1", "table7") for ending in ("csv", "md", "tex")]
    assert second.tables == ["table1", "table7"]
    assert files_in(out) == sorted([*tables, *figures, *mine, "report.html", "report.json"])
    for name in (*mine, *figures):
        assert (out / name).read_text() == "older"
    third = making.make([tmp_path / "runs"], out)
    assert third.figures == ["figure5", "figure11", "figure12", "figure15", "profiles", "sample-efficiency"]
    drawn = [f"figures/{name}.{ending}" for name in third.figures for ending in ("png", "pdf")]
    assert files_in(out) == sorted([*tables, *drawn, *mine, "report.html", "report.json"])
    assert sorted(p.relative_to(out).as_posix() for p in third.files) == sorted(
        [*tables, *drawn, "report.html", "report.json"]
    )
    for name in mine:
        assert (out / name).read_text() == "older"
    for name in drawn:
        assert (out / name).stat().st_size > 3000
