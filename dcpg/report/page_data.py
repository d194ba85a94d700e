"""Everything that the page shows, as plain data for JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcpg.config.command import written as as_text
from dcpg.config.explain import explain
from dcpg.config.written import Recorded
from dcpg.report import paper
from dcpg.report.claims import NOTE, Answer
from dcpg.report.comparison import Comparison, Curve, StiffnessRuns
from dcpg.report.figures import colour
from dcpg.report.grids import INTERVALS, GridTable
from dcpg.report.leads import LEADS
from dcpg.report.level_map import level_map
from dcpg.report.likeness import PICTURES, STEPS, differences
from dcpg.report.missing import Missing
from dcpg.report.paper import game_title, method_title
from dcpg.report.scores import (
    Score,
    ScoreBand,
    aggregates,
    improvement,
    lacking,
    named,
    normalised_scores,
    papers_aggregate,
    papers_score,
    profiles,
    sample_efficiency,
)
from dcpg.report.tables import Table, seeds_of
from dcpg.report.text_table import TextTable
from dcpg.runs.comparable import PRECISION
from dcpg.runs.folders import Problem
from dcpg.runs.records import STIFFNESS, Record
from dcpg.settings import dotted
from dcpg.storage.files import read_regular
from dcpg.storage.rows import SPLITS

CURVES = {  # name on the page -> split, field of `Split`
    "train": ("train", "mean"), "test": ("test", "mean"),
    "predicted_train": ("train", "predicted_value"), "true_train": ("train", "true_value"),
    "own_train": ("train", "true_value_own_gamma"), "predicted_test": ("test", "predicted_value"),
    "true_test": ("test", "true_value"), "own_test": ("test", "true_value_own_gamma"),
}  # fmt: skip
POINTS = 200  # at most, of one run's stiffness over training
MOST_PAIRED = 30  # methods and variants of which every pair is compared
REFERENCES = ("ppo", "ppg", "dcpg", "ddcpg")  # of more than that
VIDEO_BYTES = 24_000_000  # of all videos of a page together


def page_data(
    records: list[Record],
    comparison: Comparison,
    measured: StiffnessRuns,
    tables: Sequence[Table | GridTable | TextTable],
    figures: list[str],
    same: dict[str, str],
    claims: list[Answer],
    missing: list[Missing],
    problems: list[Problem],
) -> dict[str, Any]:
    """The contents of report.json, and of the page."""
    labels, games = comparison.labels, comparison.games
    finished = sum(record.finished for record in comparison.records)
    videos = _videos(comparison, problems)
    return {
        "setting": comparison.sentence(),
        "caption": comparison.caption,
        "like_paper": comparison.like_paper,
        "is_papers": comparison.is_papers,
        "runs": {"finished": finished, "unfinished": len(comparison.records) - finished, "problems": len(problems)},
        "methods": [{"label": m, "title": method_title(m), "colour": colour(m)} for m in labels],
        "games": [{"id": game, "title": game_title(game)} for game in games],
        "headline": _headline(comparison),
        "curves": [c for game in games for label in labels if (c := _curves(comparison, label, game))],
        "gaps": _gaps(comparison),
        "improvement": _improvement(comparison),
        "improvement_over": _references(comparison),
        "profiles": _profiles(comparison),
        "efficiency": {m: _band(steps, band) for m, (steps, band) in sample_efficiency(comparison, labels).items()},
        "stiffness": _stiffness(comparison, measured),
        "levels": {game: found for game in games if (found := level_map(comparison, game))},
        "yardstick": _yardstick(records),
        "tables": [_table(table) for table in tables if isinstance(table, Table)],
        "grid": next((_grid(table) for table in tables if isinstance(table, GridTable)), None),
        "leads": next((_leads(t) for t in tables if isinstance(t, TextTable) and t.name == LEADS), None),
        "figures": figures,
        "same": same,
        "claims_note": NOTE,
        "claims": [
            {
                "says": a.claim.says,
                "where": a.claim.where,
                "paper": a.claim.paper,
                "here": a.here,
                "seeds": a.seeds,
                "verdict": a.verdict,
                "note": a.note,
            }
            for a in claims
        ],
        "videos": videos,
        "algorithms": {label: _explained(_first(comparison, label)) for label in labels},
        "configuration": _configuration(comparison),
        "versions": _versions(comparison),
        "list": [_run(record) for record in comparison.records],
        "missing": [{"what": entry.what, "commands": entry.commands, "more": entry.more} for entry in missing],
        "problems": [{"where": str(problem.path), "what": problem.text} for problem in problems],
    }


def _profiles(comparison: Comparison) -> dict[str, Any]:
    taus, bands = profiles(comparison, comparison.labels)
    return {label: _band(taus, band) for label, band in bands.items()}


def _finished(comparison: Comparison) -> list[str]:
    return [label for label in comparison.labels if comparison.scores(label, "test")]


def _first(comparison: Comparison, label: str) -> Record:
    return next(record for record in comparison.records if record.label == label)


def _explained(record: Record) -> str:
    """The algorithm of a run's method; of a method from a plugin as the run wrote it down."""
    if not record.written.explained and isinstance(record.config, Recorded):
        return "not recorded"  # nor declared here
    return record.written.explained or explain(record.config)


def _interval(found: Score) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _band(x: Any, band: ScoreBand) -> dict[str, list[float] | None]:
    low, high = (None if end is None else end.tolist() for end in (band.low, band.high))
    return {"x": list(map(float, x)), "y": band.value.tolist(), "low": low, "high": high}


def _headline(comparison: Comparison) -> dict[str, Any]:
    labels = _finished(comparison)
    found: dict[str, Any] = {"methods": labels, "notes": {}, "normalised": {}}
    for split in reversed(SPLITS):
        normalised = normalised_scores(comparison, labels, split)
        found["notes"][split] = normalised.notes
        found["normalised"][split] = {
            m: {
                **_interval(s),
                "std": s.std,
                "seeds": seeds_of(comparison, m, normalised.games, split),
                "paper": p.mean if (p := papers_score(comparison, split, m, normalised.games)) else None,
            }
            for m, s in normalised.scores.items()
        }
    metrics, fair = aggregates(comparison, labels)
    found["minmax"] = {
        m: {
            name: {
                **_interval(v),
                "seeds": seeds_of(comparison, m, fair.games, "test"),
                "paper": papers_aggregate(comparison, m, name, fair.games),
            }
            for name, v in of_method.items()
        }
        for m, of_method in metrics.items()
    }
    found["shared"] = [f"Over {named(fair.games)}.", *lacking(fair)] if fair.games else []
    if comparison.like_paper:
        found["shared"].append(
            "The paper prints means of games only: its IQM and optimality gap are those of its games' means."
        )
    return found


def _curves(comparison: Comparison, label: str, game: str) -> dict[str, Any] | None:
    found = {name: c for name, which in CURVES.items() if (c := comparison.curve(label, game, *which)) is not None}
    if not found:
        return None
    if (gap := comparison.gap_curve(label, game)) is not None:
        found["gap"] = gap
    first = _points(found["train"])
    curves = {name: _mean_std(c) | (own if (own := _points(c)) != first else {}) for name, c in found.items()}
    return {"game": game, "label": label, **first, **curves}


def _points(curve: Curve) -> dict[str, list[int]]:
    """Where a curve is known, and by how many runs: unseen levels may not have been played at every evaluation."""
    return {"steps": curve.steps.tolist(), "seeds": curve.seeds.tolist()}


def _mean_std(curve: Curve) -> dict[str, list[float]]:
    return {"mean": curve.mean.tolist(), "std": curve.std.tolist()}


def _gaps(comparison: Comparison) -> list[dict[str, Any]]:
    """The return on training levels minus that on unseen ones, of finished runs."""
    rows = []
    for game in comparison.games:
        for label in comparison.labels:
            gaps = comparison.gaps(label, game)
            if len(gaps):
                spread = float(gaps.std(ddof=1)) if len(gaps) > 1 else 0.0
                rows.append(
                    {"game": game, "label": label, "gap": float(gaps.mean()), "std": spread, "seeds": len(gaps)}
                )
    return rows


def _references(comparison: Comparison) -> list[str]:
    """The methods that all others are compared with, pair by pair: each of them unless there are very many.

    Every pair takes a bootstrap of its own. One half does not follow from the other: P(y > x) is 1 - P(x > y), but the
    interval of the turned pair comes from other resamplings.
    """
    labels = _finished(comparison)
    if len(labels) <= MOST_PAIRED:
        return labels
    return [label for label in REFERENCES if label in labels] or labels[:1]


def _improvement(comparison: Comparison) -> list[dict[str, Any]]:
    labels, references = _finished(comparison), _references(comparison)
    found = []
    for x in labels:
        for y in labels if x in references else references:
            if x != y and (chance := improvement(comparison, x, y)):
                games = comparison.fair([x, y], "test", comparison.games).games
                counts = [len(comparison.finals(m, game, "test")) for m in (x, y) for game in games]
                found.append({"label": x, "over": y, **_interval(chance), "seeds": [min(counts), max(counts)]})
    return found


def _stiffness(comparison: Comparison, measured: StiffnessRuns) -> dict[str, Any]:
    training = []
    for record in comparison.records:
        if record.stiffness:
            rows = record.stiffness[:: -(-len(record.stiffness) // POINTS)]
            about = {"label": record.label, "game": record.game, "seed": record.config.seed}
            columns = {name: [getattr(row, name) for row in rows] for name in ("steps", *STIFFNESS)}
            training.append(about | columns)
    cells = sorted({(r.game, r.label) for r in measured.records})
    levels = []
    for game, label in cells:
        curves = {name: measured.curve(label, game, name) for name in STIFFNESS}
        if (first := curves["stiffness"]) is not None and len(first.steps) > 1:
            about = {"label": label, "title": method_title(label), "colour": colour(label), "game": game}
            shown = {name: _mean_std(c) for name, c in curves.items() if c is not None}
            levels.append(about | {"x": first.steps.tolist()} | shown)
    return {
        "training": training, "levels": levels, "sentence": measured.sentence() if measured.records else "",
        "caption": measured.caption,
    }  # fmt: skip


def _yardstick(records: list[Record]) -> list[dict[str, Any]]:
    """PPO runs of the paper's setting and of any length, against published PPO returns.

    Precision and pictures may differ and are named.
    """
    rows = []
    for record in records:
        band = paper.ppo_band().get(record.config.game)
        if record.label != "ppo" or band is None or not record.evaluations:
            continue
        unlike = [one for one in differences([record]) if one.name != STEPS]
        if any(one.name not in (PRECISION, PICTURES) for one in unlike):
            continue
        steps = [evaluation.steps for evaluation in record.evaluations]
        points = []
        for at, train, test in zip(band["steps"], band["train"], band["test"], strict=True):
            if at > max(steps) or at < min(steps):
                continue
            own = {
                split: float(np.interp(at, steps, [e.splits[split].mean for e in record.evaluations]))
                for split in SPLITS
            }
            points.append({"steps": int(at), "published": {"train": float(train), "test": float(test)}, "own": own})
        if points:
            about = {"game": game_title(record.config.game), "seed": record.config.seed}
            rows.append(about | {"points": points, "unlike": ", ".join(map(str, unlike))})
    return rows


def _table(table: Table) -> dict[str, Any]:
    cells = [[table.cells[row, column] for column in table.columns] for row in table.rows]
    texts = [[{"own": table.own(c), "paper": table.papers(c) if c.paper else ""} for c in row] for row in cells]
    return {
        "name": table.name, "title": table.title, "corner": table.corner, "columns": table.columns, "rows": table.rows,
        "cells": texts, "notes": table.notes,
    }  # fmt: skip


def _leads(table: TextTable) -> dict[str, Any]:
    return {"note": table.note, "head": table.head, "rows": table.rows}


def _grid(table: GridTable) -> dict[str, Any]:
    blocks = [{"title": block.title, "rows": table.rows(block)} for block in table.grid.blocks]
    return {"name": table.name, "about": INTERVALS, "head": table.head, "blocks": blocks, "notes": table.grid.notes}


def _videos(comparison: Comparison, problems: list[Problem]) -> list[dict[str, str]]:
    """One video per game: of the run with the best return on unseen levels that has one."""
    found, bytes_left = [], VIDEO_BYTES
    for game in comparison.games:
        having = [r for r in comparison.records if r.game == game and (r.path / "replay.mp4").exists()]
        for record in sorted(having, key=lambda r: -(_last(r, "test") or 0.0)):
            try:
                data = read_regular(record.path / "replay.mp4", bytes_left)
            except OSError as error:
                problems.append(Problem(record.path, f"replay.mp4 is not shown: {error.strerror}"))
                continue
            bytes_left -= len(data)
            source = "data:video/mp4;base64," + base64.b64encode(data).decode()
            found.append({"game": game_title(game), "label": record.label, "name": record.name, "source": source})
            break
    return found


def _configuration(comparison: Comparison) -> list[dict[str, Any]]:
    """Every setting: one value if all runs share it, else the values of each method."""
    rows: dict[str, dict[str, set[str]]] = {}
    for record in comparison.records:
        for name, value, _ in dotted(record.config):
            if name not in ("method", "game", "seed"):
                rows.setdefault(name, {}).setdefault(record.label, set()).add(as_text(value))
    found = []
    for name, values in rows.items():
        every = set.union(*values.values())
        same = len(every) == 1 and len(values) == len(comparison.labels)
        texts = {label: " or ".join(sorted(some)) for label, some in values.items()}
        found.append({"name": name, "value": next(iter(every)) if same else None, "values": texts})
    return found


def _versions(comparison: Comparison) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for record in comparison.records:
        for name, version in record.written.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in sorted(found.items())}


def _last(record: Record, split: str) -> float | None:
    """The return of the newest evaluation; your own environment may have no unseen levels."""
    splits = record.evaluations[-1].splits
    return splits[split].mean if split in splits else None


def _run(record: Record) -> dict[str, Any]:
    return {
        "method": record.label, "game": game_title(record.game), "seed": record.config.seed, "steps": record.steps,
        "of": record.setting.steps, "finished": record.finished, "train": _last(record, "train"),
        "test": _last(record, "test"), "path": str(record.path),
    }  # fmt: skip
