"""The grid of 15 methods x 16 games x 3 seeds that the tests of the report share, and plain sums over its numbers."""

from __future__ import annotations

import csv
import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dcpg
from dcpg.methods import METHODS
from dcpg.report import write as making
from dcpg.report.missing import Missing
from dcpg.report.write import write_report
from tests.synthetic import PAPER_STEPS, Run, configuration, ood_actions, rows_of, stiffness_rows, write

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
ALL_TABLES = [*TABLES, "grid", "leads", "claims"]  # the grid is that of the stiffness runs: steps and levels
FIGURES = [*(f"figure{n}" for n in range(2, 17)), "profiles", "sample-efficiency"]


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


# `dcpg report ...` -> exit code, standard output, standard error, and the report itself
Command = Callable[..., tuple[int, str, str, making.Report | None]]


@dataclass(frozen=True)
class Figure:
    """The expected contents of a cell."""

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


@dataclass
class Built:
    """The numbers of the runs and the report on them; plain data, so that test processes can share it."""

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
        """The PPO-normalised score, and its deviation over seeds with PPO's means fixed."""
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

    def look_and_write(figures: Any, *more: Any) -> list[Path]:
        plotted.update({name: plotted_of(figure) for name, figure in figures.items()})
        return original(figures, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "_write_figures", look_and_write)
        made = write_report([folder / "runs"], folder / "out")
    notes = [f"{p.path}: {p.text}" for p in made.problems]
    return Built(
        runs,
        stiff,
        folder / "out",
        plotted,
        made.tables,
        made.figures,
        notes,
        made.missing,
        len(made.comparison.records),
    )


def plotted_of(figure: Any) -> dict[str, Any]:
    """Everything that a figure shows, as numbers and text."""
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
            "title": axes.get_title(), "xlabel": axes.get_xlabel(), "ylabel": axes.get_ylabel(),
            "xscale": axes.get_xscale(), "xticks": list(map(float, axes.get_xticks())), "lines": lines,
            "ylim": axes.get_ylim(),
            "bands": bands, "bars": [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches],
            "rows": [label.get_text() for label in axes.get_yticklabels()],
        })  # fmt: skip
    legends = [found for part in (figure, *figure.subfigs) for found in part.legends]
    legend = [text.get_text() for found in legends for text in found.get_texts()]
    return {"title": figure.get_suptitle(), "panels": panels, "legend": legend}


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
