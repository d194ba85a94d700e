"""The paper's claims on runs whose answers are known: worlds in which all hold, none holds, or nothing can be told."""

from __future__ import annotations

import csv
import dataclasses
import math
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dcpg.config.written import Written
from dcpg.methods import METHODS
from dcpg.report.claims import CLAIMS, SEEDS, Answer, answers
from dcpg.report.comparison import Comparison, StiffnessRuns
from dcpg.report.measures import FAILS, HOLDS, LEVEL_COUNTS, OPEN
from dcpg.report.statistics import Interval, contrast, t_quantile
from dcpg.runs.records import Measurement, Record
from dcpg.storage.rows import Evaluation, Split
from tests.report.grid import GAMES, Command, papers
from tests.synthetic import configuration, some

SHARES = (0.05, 0.2, 0.5, 0.8, 1.0)  # of training, at which runs are evaluated
# true less predicted value, (early, late), in the world in which the claims hold and in the one in which none does
BELOW = {
    True: {"dcpg": (3.0, 0.5), "ppg": (1.0, 1.0), "ppg+dr": (1.0, 1.0), "ppg+ar": (1.0, 1.0)},
    False: {"dcpg": (-0.5, 2.0), "ppg": (1.0, 1.0), "ppg+dr": (1.0, -1.0), "ppg+ar": (1.0, -1.0)},
}
WRONG = {True: {"dcpg+f": 7.0, "dcpg+fi": 2.5, "ddcpg": 0.7}, False: {"dcpg+f": 1.0, "dcpg+fi": 2.0, "ddcpg": 5.0}}


@cache
def config(method: str, steps: int = 25_000_000):  # type: ignore[no-untyped-def]
    return configuration(method, "bigfish", 0, steps=steps)


def record(method: str, game: str, seed: int, evaluations: list[Evaluation], **more: object) -> Record:
    levels, steps = int(more.pop("levels", 200)), int(more.pop("steps", 25_000_000))  # type: ignore[call-overload]
    base = config(method, steps)
    found = dataclasses.replace(base, game=game, seed=seed, levels=dataclasses.replace(base.levels, count=levels))
    written = Written(plain={}, config=found, preset_values={}, init=None, versions={}, libraries=[])
    return Record(Path(f"{game}-{method}-{seed}-{levels}"), written, evaluations, **({"stiffness": []} | more))  # type: ignore[arg-type]


def score(method: str, split: str, true: bool) -> float:
    """The paper's score of a method, or one as far on the other side of PPO's."""
    printed = papers()
    key = (split, "ppo_normalised_score", "all", method)
    found = printed[key][0] if key in printed else printed["test", "ppo_normalised_score", "all", method][0]
    return found if true else 200 - found


def evaluations(method: str, game: str, draw: random.Random, true: bool, noise: float) -> list[Evaluation]:
    end, found = 24_985_600, []
    early, late = BELOW[true].get(method, (0.0, 0.0))
    for k, share in enumerate(SHARES):
        splits = {}
        for split in ("train", "test"):
            value = 10 * score(method, split, true) / 100 * (1 + noise * draw.uniform(-1, 1))
            below = (early if share <= 0.2 else late) + noise * draw.uniform(-1, 1)
            splits[split] = Split(**{
                "mean": value, "predicted_value": 5.0 - below, "true_value": 5.0, "true_value_own_gamma": 5.0,
            })  # fmt: skip
        steps = round(share * end / 16_384) * 16_384 if share < 1 else end
        found.append(Evaluation(k=k, rollout=steps // 16_384, steps=steps, splits=splits))
    return found


@cache
def world(true: bool, seeds: int = 3, noise: float = 0.003, methods: tuple[str, ...] = tuple(METHODS)) -> list[Answer]:
    runs = []
    for method in methods:
        for game in GAMES:
            for seed in range(seeds):
                draw = random.Random(f"{method} {game} {seed}")
                analyses = {}
                if game == "bigfish" and method in WRONG[true]:
                    mean = WRONG[true][method] * (1 + noise * draw.uniform(-1, 1))
                    analyses["ood-actions"] = {"mean": mean, "steps": 24_985_600}
                runs.append(record(method, game, seed, evaluations(method, game, draw, true, noise), analyses=analyses))
    stiff = []
    for method in ("ppg", "dcpg"):
        for game in GAMES:
            for count in LEVEL_COUNTS:
                for seed in range(seeds):
                    draw = random.Random(f"{method} {game} {count} {seed}")
                    slope = (-1 if true else 1) * 0.04 * math.log2(count)
                    lead = (0.1 if true else -0.1) if method == "dcpg" else 0.0
                    value = 0.4 + slope + lead + noise * draw.uniform(-1, 1)
                    last = Evaluation(k=0, rollout=488, steps=7_995_392, splits={})
                    measured = [Measurement(16_384, value, value, 0.5)]
                    stiff.append(record(method, game, seed, [last], levels=count, steps=8_000_000, stiffness=measured))
    return answers(Comparison(runs, runs[0].setting), StiffnessRuns(stiff))


def by_verdict(found: list[Answer]) -> dict[str, set[str]]:
    return {v: {a.claim.name for a in found if a.verdict == v} for v in (HOLDS, FAILS, OPEN)}


EVERY = {claim.name for claim in CLAIMS}


def test_every_claim_holds_where_the_papers_figures_came_out() -> None:
    found = world(true=True)
    assert by_verdict(found) == {HOLDS: EVERY, FAILS: set(), OPEN: set()}
    by_name = {a.claim.name: a for a in found}
    assert by_name["dcpg-over-ppg-test"].here.startswith("+24.")
    assert by_name["dcpg-over-ppg-test"].claim.paper == "+24.2 points"
    assert by_name["ddcpg-over-dcpg-test"].claim.paper == "+17.7 points"
    assert by_name["dynamics-help-dcpg-more"].claim.paper == "+6.3 points"
    assert by_name["dcpg-generalises"].claim.paper == "+12.0 points"
    assert by_name["dcpg-reaches-ppg-miner"].here.startswith("5% of the steps")
    assert by_name["dcpg-stiffer-everywhere"].here == "between 16 and 16 games"
    assert by_name["dcpg+f-believes-more"].claim.paper == "+6.31 (7.05 against 0.74)"
    assert by_name["dcpg-improves"].here == "probability 1.00 (1.00 to 1.00)"
    assert {a.seeds for a in found} == {3}


@pytest.mark.faults
def test_no_claim_holds_where_everything_came_out_the_other_way() -> None:
    assert by_verdict(world(true=False)) == {HOLDS: set(), FAILS: EVERY, OPEN: set()}


def test_two_seeds_tell_nothing_however_clear_they_are() -> None:
    found = world(true=True, seeds=SEEDS - 1)
    assert by_verdict(found)[OPEN] == EVERY
    assert all("Needs 3 seeds." in a.note for a in found)


@pytest.mark.faults
def test_what_noise_hides_cannot_be_told() -> None:
    found = by_verdict(world(true=True, noise=4.0))
    assert len(found[OPEN]) > len(EVERY) / 2
    assert not found[FAILS] & {name for name in EVERY if "-over-" in name}


@pytest.mark.faults
def test_a_method_that_lacks_a_run_leaves_its_claims_open_and_the_answer_says_what_is_needed() -> None:
    found = {a.claim.name: a for a in world(true=True, methods=tuple(m for m in METHODS if m != "dcpg+i"))}
    assert found["ddcpg-over-dcpg+i-test"].verdict == OPEN
    assert found["ddcpg-over-dcpg+i-test"].note == "Needs DCPG+I on all 16 games."
    assert found["ddcpg-over-dcpg+f-test"].verdict == HOLDS
    without = {a.claim.name: a for a in world(true=True, methods=tuple(m for m in METHODS if m != "ppg"))}
    assert without["dcpg-reaches-ppg-miner"].note == "Needs finished runs of PPG on Miner."
    # the paper's PPO stands in at the paper's size
    assert {a.claim.name: a for a in world(true=True, methods=("dcpg", "ppg"))}["dcpg-over-ppg-test"].verdict == HOLDS


def test_stiffness_of_twelve_games_is_counted_by_intervals() -> None:
    def stiff(better: int, worse: int) -> str:
        runs = []
        for method in ("ppg", "dcpg"):
            for place, game in enumerate(GAMES):
                lead = 0.2 if place < better else -0.2 if place >= len(GAMES) - worse else 0.0
                for count in LEVEL_COUNTS:
                    for seed in range(3):
                        value = 0.4 + (lead if method == "dcpg" else 0.0) + 0.01 * seed
                        last = Evaluation(k=0, rollout=488, steps=7_995_392, splits={})
                        measured = [Measurement(16_384, value, value, 0.5)]
                        runs.append(
                            record(method, game, seed, [last], levels=count, steps=8_000_000, stiffness=measured)
                        )
        some_run = record("ppo", "bigfish", 0, [])
        found = answers(Comparison([some_run], some_run.setting), StiffnessRuns(runs))
        return next(a.verdict for a in found if a.claim.name == "dcpg-stiffer-everywhere")

    assert stiff(better=12, worse=4) == HOLDS
    assert stiff(better=11, worse=5) == FAILS
    assert stiff(better=11, worse=4) == OPEN


def test_runs_that_never_reach_ppgs_return_count_with_all_steps() -> None:
    draw = random.Random(0)
    low, high = (evaluations(m, "miner", draw, True, 0.0) for m in ("ppo", "dcpg"))
    ppg = [record("ppg", "miner", k, evaluations("ppg", "miner", draw, True, 0.001)) for k in range(3)]
    dcpg = [record("dcpg", "miner", k, one) for k, one in enumerate((low, high, high))]
    found = answers(Comparison([*ppg, *dcpg], ppg[0].setting), StiffnessRuns([]))
    one = next(a for a in found if a.claim.name == "dcpg-reaches-ppg-miner")
    assert one.here.startswith("37% of the steps (0% to 100%), not reached by 1 of 3, counted as 100%")
    assert one.verdict == OPEN


def test_files_and_page_hold_the_answers(tmp_path: Path, command: Command) -> None:
    for method in ("ppo", "dcpg"):
        for seed in range(3):
            some(tmp_path / "runs" / f"{method}-{seed}", method, "bigfish", seed)
    code, out, _, _ = command(tmp_path / "runs", "claims", "--out", tmp_path / "out")
    assert code == 0
    assert "Tables: claims" in out
    with open(tmp_path / "out" / "tables" / "claims.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == EVERY
    lead = next(row for row in rows if row["name"] == "dcpg-over-ppo-test")
    assert (lead["the paper"], lead["seeds"], lead["games, or what is needed"][:12]) == (
        "'+84.5 points",  # or a spreadsheet would compute it
        "3",
        "Over BigFish",
    )
    text = (tmp_path / "out" / "tables" / "claims.md").read_text()
    assert text.count("\n| ") == len(CLAIMS) + 1
    assert "Unlike the paper's: " in text
    tex = (tmp_path / "out" / "tables" / "claims.tex").read_text()
    assert tex.count(" \\\\\n") == len(CLAIMS) + 1


# Student's t, two-sided 95%: any table has these
@pytest.mark.parametrize(
    ("freedom", "wanted"), [(2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (30, 2.04227)]
)
def test_quantiles_of_students_t(freedom: float, wanted: float) -> None:
    assert t_quantile(freedom) == pytest.approx(wanted, abs=2e-5)


def test_a_contrast_is_welchs_interval() -> None:
    x, y = np.array([27.5, 21.0, 19.0, 23.6, 17.0]), np.array([27.1, 22.0, 20.8])
    found = contrast([(1.0, x), (-1.0, y)])
    errors = [x.var(ddof=1) / 5, y.var(ddof=1) / 3]
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 4 + errors[1] ** 2 / 2)
    half = t_quantile(freedom) * math.sqrt(sum(errors))
    assert found.value == pytest.approx(x.mean() - y.mean())
    assert (found.low, found.high) == (pytest.approx(found.value - half), pytest.approx(found.value + half))
    assert freedom == pytest.approx(5.1373, abs=1e-4)
    assert contrast([(2.0, np.array([3.0, 3.0]))]) == Interval(6.0, 6.0, 6.0)
