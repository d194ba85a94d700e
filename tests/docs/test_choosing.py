"""The figures of docs/choosing.md against the numbers that the paper prints."""

from __future__ import annotations

import math
import re

from dcpg.envs.procgen import GAMES
from dcpg.report.paper import game_title, printed
from dcpg.report.statistics import t_quantile
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "choosing.md").read_text()
MAIN = ("ppo", "ucb-drac", "plr", "daac", "ppg", "dcpg", "ddcpg")


def seeds(key: tuple[str, str, str], one: str, other: str) -> tuple[str, str]:
    """The difference, and the least number of seeds of both whose interval excludes zero."""
    x, y = (printed()[(*key, method)] for method in (one, other))
    assert x.std is not None
    assert y.std is not None
    for n in range(3, 31):
        errors = [x.std**2 / n, y.std**2 / n]
        freedom = sum(errors) ** 2 / sum(e**2 / (n - 1) for e in errors)
        if t_quantile(freedom) * math.sqrt(sum(errors)) < x.mean - y.mean:
            return f"{x.mean - y.mean:.1f}", str(n)
    return f"{x.mean - y.mean:.1f}", "over 30"


def test_seeds_over_all_games() -> None:
    rows = re.findall(r"^\| `(.+?)` over `(.+?)` \| ([\d.]+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 10
    for one, other, difference, count in rows:
        assert seeds(("test", "ppo_normalised_score", "all"), one, other) == (difference, count)


def test_seeds_on_single_games() -> None:
    titles = re.search(r"^\| comparison \| (BigFish .+) \|$", TEXT, re.MULTILINE)
    assert titles is not None
    games = {game_title(g): g for g in GAMES}
    rows = re.findall(r"^\| `(.+?)` over `(.+?)` \| (.+: .+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 3
    for one, other, cells in rows:
        for title, cell in zip(titles[1].split(" | "), cells.split(" | "), strict=True):
            assert tuple(cell.split(": ")) == seeds(("test", "return", games[title]), one, other)


def test_which_method_is_the_papers_best() -> None:
    best = {g: max(MAIN, key=lambda m: printed()["test", "return", g, m].mean) for g in GAMES}
    assert sum(m == "ddcpg" for m in best.values()) == 10
    assert "the paper's best mean in 10 of 16 games" in TEXT
    assert {g for g, m in best.items() if m == "ppg"} == {"caveflyer", "fruitbot", "plunder"}
    assert {g for g, m in best.items() if m == "daac"} == {"coinrun", "leaper"}
    assert {g for g, m in best.items() if m == "plr"} == {"ninja"}
    for method, score in {"ddcpg": 202, "dcpg": 185, "ppg": 160, "daac": 137}.items():
        found = printed()["test", "ppo_normalised_score", "all", method].mean
        assert abs(found - score) <= 0.5
        assert f"{score}%" in TEXT
