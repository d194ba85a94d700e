"""The table of leads over PPO against figures computed here, from the rows alone."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from dcpg.report.leads import HEAD
from tests.report.grid import Command, deviation, mean
from tests.synthetic import Row, Run, edit, some

T = {4: 2.77645, 2: 4.30265}  # Student's t, two-sided 95%


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "tables" / "leads.csv", newline="") as file:
        return list(csv.DictReader(file))


def column(runs: list[Run], levels: str) -> list[float]:
    last = [run.rows[-1] for run in runs]
    train, test = ([row[f"{split}_return"] for row in last] for split in ("train", "test"))
    gaps = [a - b for a, b in zip(train, test, strict=True)]
    return {"training levels": train, "unseen levels": test}.get(levels, gaps)


def test_every_game_has_the_difference_with_welchs_interval(tmp_path: Path, command: Command) -> None:
    made: dict[str, list[Run]] = {"ppo": [], "dcpg": [], "ppg": []}
    for seed in range(3):
        for method, level in (("ppo", 5.0), ("dcpg", 50.0), ("ppg", 0.5)):
            made[method].append(some(tmp_path / "runs" / f"{method}-{seed}", method, "bigfish", seed, level=level))
    some(tmp_path / "runs" / "alone", "dcpg", "maze", 0)  # where PPO has not finished there is nothing to say
    assert command(tmp_path / "runs", "leads", "--out", tmp_path / "out")[0] == 0
    found = rows(tmp_path / "out")
    assert [(row["levels"], row["method"]) for row in found] == [
        (levels, method)
        for levels in ("unseen levels", "training levels", "gap: training less unseen")
        for method in ("PPG", "DCPG")
    ]
    assert {row["game"] for row in found} == {"BigFish"}
    for row in found:
        own, ppo = (column(made[method], row["levels"]) for method in (row["method"].lower(), "ppo"))
        assert (row["return"], row["PPO's"]) == (f"{mean(own):.2f}", f"{mean(ppo):.2f}")
        shares = [deviation(values) ** 2 / 3 for values in (own, ppo)]
        difference, error = mean(own) - mean(ppo), math.sqrt(sum(shares))
        text = row[HEAD[5]].lstrip("'")
        value, low, high = (float(x) for x in text.replace("(", " ").replace(" to ", " ").rstrip(")").split())
        assert value == pytest.approx(difference, abs=0.006)
        half = (high - low) / 2
        assert T[4] * error - 0.01 <= half <= T[2] * error + 0.01  # Welch's freedom lies between 2 and 4
        freedom = sum(shares) ** 2 / sum(share**2 / 2 for share in shares)
        if freedom < 2.001:
            assert half == pytest.approx(T[2] * error, abs=0.01)
        assert row["seeds"] == "3"
        decided = "higher" if low > 0 else "lower" if high < 0 else "not decided"
        assert row["verdict"] == decided
    verdicts = {(row["levels"], row["method"]): row["verdict"] for row in found}
    assert verdicts["unseen levels", "DCPG"] == "higher"
    assert verdicts["unseen levels", "PPG"] == "lower"


def test_equal_returns_are_no_lead(tmp_path: Path, command: Command) -> None:
    """The mean of ten times 9.6 and that of nine times 9.6 differ by rounding."""
    for method, seeds in (("ppo", 10), ("dcpg", 9)):
        for seed in range(seeds):
            run = some(tmp_path / "runs" / f"{method}-{seed}", method, "bigfish", seed).path
            edit("eval.jsonl", lambda rows: [equal(row) for row in rows] and None)(run)
    assert command(tmp_path / "runs", "leads", "--out", tmp_path / "out")[0] == 0
    for row in rows(tmp_path / "out"):
        assert (row[HEAD[5]].lstrip("'"), row["verdict"]) == ("+0.00 (+0.00 to +0.00)", "not decided")


def equal(row: Row) -> None:
    for split in ("train", "test"):
        row[f"{split}_returns"] = [9.6] * len(row[f"{split}_returns"])
        row[f"{split}_return"] = 9.6


def test_fewer_than_three_seeds_decide_nothing(tmp_path: Path, command: Command) -> None:
    for method, level, seeds in (("ppo", 1.0, (0, 1)), ("dcpg", 50.0, (0, 1, 2)), ("ppg", 50.0, (0,))):
        for seed in seeds:
            some(tmp_path / "runs" / f"{method}-{seed}", method, "bigfish", seed, level=level)
    assert command(tmp_path / "runs", "leads", "--out", tmp_path / "out")[0] == 0
    found = {row["method"]: row for row in rows(tmp_path / "out") if row["levels"] == "unseen levels"}
    assert {row["verdict"] for row in found.values()} == {"not decided"}
    assert (found["DCPG"]["seeds"], found["PPG"]["seeds"]) == ("3 and 2", "1 and 2")
    assert "(" not in found["PPG"][HEAD[5]]  # one seed has no interval


def test_without_ppo_the_command_says_what_is_needed(tmp_path: Path, command: Command) -> None:
    some(tmp_path / "runs" / "dcpg", "dcpg", "bigfish", 0)
    code, _, err, _ = command(tmp_path / "runs", "leads", "--out", tmp_path / "out")
    assert code == 2
    assert "leads needs finished runs of PPO and of another method on one game" in " ".join(err.split())
