"""The numbers of the README and of docs/results.md against the raw rows in results/, and the agents in agents/."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpg
from dcpg.report.paper import game_title, method_title
from dcpg.report.statistics import contrast
from dcpg.runs.collection import read
from dcpg.runs.evaluate import half_width
from dcpg.storage.rows import Evaluation, read_last
from tests.docs.pages import ROOT

RESULTS, AGENTS = ROOT / "results", ROOT / "agents"
SPLITS = ("train", "test")


def shown(returns: list[float]) -> str:
    return f"{sum(returns) / len(returns):.2f} ± {half_width(returns):.2f}"


def section(title: str) -> str:
    """A section of docs/results.md."""
    return (ROOT / "docs" / "results.md").read_text().partition(f"## {title}")[2].partition("\n## ")[0]


def bounds(cell: str) -> tuple[float, float]:
    mean, _, half = cell.partition(" ± ")
    return float(mean) - float(half), float(mean) + float(half)


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_table_of_make_train_is_that_of_the_rows(page: str) -> None:
    untrained = json.loads((RESULTS / "make-train" / "untrained.json").read_bytes())
    text = (ROOT / page).read_text()
    rows = re.findall(r"^\| (\d) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    for seed, *cells in rows:
        last = read_last(RESULTS / "make-train" / f"starpilot-dcpg-{seed}" / "eval.jsonl", Evaluation)
        assert last is not None
        expected = []
        for split in SPLITS:
            expected += [shown(untrained[seed][split]["returns"]), shown(last.splits[split].returns or [])]
        assert cells == expected
        for before, after in (cells[:2], cells[2:]):  # as the page says
            assert bounds(after)[0] > bounds(before)[1]


def test_the_table_of_the_laptop_sweep_is_that_of_the_rows() -> None:
    text = section("The `laptop` sweep")
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == ["ppo", "ppg", "dcpg", "ddcpg"]
    for method, *cells in rows:
        found = [
            read_last(RESULTS / "laptop-sweep" / f"starpilot-{method}-{s}" / "eval.jsonl", Evaluation) for s in (0, 1)
        ]
        assert cells == [", ".join(f"{row.splits[split].mean:.2f}" for row in found if row) for split in SPLITS]


def test_the_comparison_is_that_of_the_rows_and_of_the_report(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \| (.+?) \|$", section("Two million steps"), re.MULTILINE)[1:]
    records, _ = read([RESULTS / "laptop"])
    dcpg.api.report(RESULTS / "laptop", out=tmp_path, names=("leads",))
    with open(tmp_path / "tables" / "leads.csv", newline="") as file:
        leads = {(r["game"], r["levels"].split()[0], r["method"]): r for r in csv.DictReader(file)}
    assert len(rows) == 2 * len({(r.config.game, r.config.method) for r in records})
    for game, levels, method, cells in rows:
        split = {"unseen": "test", "training": "train"}[levels]
        here = [r for r in records if (game_title(r.config.game), method_title(r.config.method)) == (game, method)]
        finals = {r.config.seed: r.evaluations[-1].splits[split].mean for r in here}
        *seeds, mean, difference = cells.split(" | ")
        assert seeds == [f"{finals[seed]:.2f}" if seed in finals else "-" for seed in range(len(seeds))]
        assert mean == f"{sum(finals.values()) / len(finals):.2f}"
        expected = leads[game, levels, method]["difference from PPO (95% interval)"] if method != "PPO" else "-"
        assert difference == expected.lstrip("'")  # with which a spreadsheet would compute it


def test_the_tables_of_the_precisions_are_those_of_the_rows() -> None:
    text = section("Does bfloat16 change what is learnt?")
    records, _ = read([RESULTS / "precision"])
    precisions, splits = {"float32": "fp32", "bfloat16": "bf16"}, {"training": "train", "unseen": "test"}

    def means(method: str, precision: str, split: str) -> np.ndarray[Any, Any]:
        """The mean return of each seed at each evaluation, [seeds, evaluations]."""
        runs = [r for r in records if (r.config.method, r.config.machine.precision) == (method.lower(), precision)]
        assert sorted(r.config.seed for r in runs) == [0, 1, 2]
        return np.array([[row.splits[split].mean for row in r.evaluations] for r in runs])

    curves = re.findall(r"^\| (PPO|DCPG) \| (\w+) \| (\w+) \| ([\d. |]+) \|$", text, re.MULTILINE)
    assert len(curves) == 8
    for method, precision, levels, cells in curves:
        expected = means(method, precisions[precision], splits[levels]).mean(axis=0)
        assert cells.split(" | ") == [f"{x:.2f}" for x in expected]
    differences = re.findall(r"^\| (PPO|DCPG) \| (\w+) \| (\S+ \(.+?\)) \| (\S+ \(.+?\)) \|$", text, re.MULTILINE)
    assert len(differences) == 4
    for method, levels, *cells in differences:
        both = [means(method, precision, splits[levels]) for precision in ("bf16", "fp32")]
        for cell, take in zip(cells, (lambda m: m[:, -1], lambda m: m[:, -4:].mean(axis=1)), strict=True):
            found = contrast([(1.0, take(both[0])), (-1.0, take(both[1]))])
            assert cell == f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def test_every_published_run_is_whole_and_named() -> None:
    folders = sorted(p.name for p in RESULTS.iterdir() if p.is_dir())
    records, problems = read([RESULTS / name for name in folders])
    assert [p for p in problems if p.path.parent.name != "precision"] == []
    assert all("in its precision alone" in problem.text for problem in problems)
    assert all(record.finished for record in records)
    named = re.findall(r"^\| `([\w-]+)` \|", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == folders


@pytest.mark.parametrize("agent", sorted(AGENTS.iterdir()), ids=lambda path: path.name)
def test_an_agent_plays_as_its_card_says(agent: Path) -> None:
    card = (agent / "README.md").read_text()
    low, high = bounds(re.findall(r"^\| unseen levels \| ([\d.]+ ± [\d.]+) \| \d+ \|$", card, re.MULTILINE)[0])
    found = dcpg.evaluate(agent, levels="100000-100039")
    errors = math.hypot((high - low) / 2, half_width(found["returns"])) / 1.96
    assert abs(found["return"] - (low + high) / 2) <= 3 * errors
    assert found["steps"] == json.loads((agent / "config.json").read_bytes())["export"]["steps"]
