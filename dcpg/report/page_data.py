"""Everything that the page shows, as plain data."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from dcpg.config.command import written
from dcpg.config.explain import explain
from dcpg.report import paper
from dcpg.report.comparison import Board, Curve, Stiff
from dcpg.report.figures import colour
from dcpg.report.level_map import level_map
from dcpg.report.missing import Missing
from dcpg.report.paper import game_title, method_title
from dcpg.report.scores import (
    aggregates,
    improvement,
    named,
    normalised_scores,
    papers_aggregate,
    papers_score,
    profiles,
    sample_efficiency,
)
from dcpg.report.statistics import Band, Interval
from dcpg.report.tables import Table
from dcpg.runs.records import STIFFNESS, Problem, Record, papers_setting
from dcpg.settings import dotted
from dcpg.storage.files import read_regular

COLUMNS = {
    "train": "train_return", "test": "test_return", "predicted_train": "train_predicted_value",
    "true_train": "train_true_value", "own_train": "train_true_value_own_gamma",
    "predicted_test": "test_predicted_value", "true_test": "test_true_value", "own_test": "test_true_value_own_gamma",
}  # fmt: skip


POINTS = 200  # of one run's stiffness over training


VIDEO_BYTES = 24_000_000  # of all videos of a page together


def page_data(
    records: list[Record],
    board: Board,
    stiff: Stiff,
    tables: list[Table],
    figures: list[str],
    lacking: list[Missing],
    problems: list[Problem],
) -> dict[str, Any]:
    """As JSON will have it."""
    finished = sum(record.finished for record in board.records)
    videos = _videos(board, problems)
    return {
        "setting": board.setting.sentence(),
        "paper_size": board.setting.is_paper_size,
        "runs": {"finished": finished, "unfinished": len(board.records) - finished, "problems": len(problems)},
        "methods": [{"label": m, "title": method_title(m), "colour": colour(m)} for m in board.labels],
        "games": [{"id": game, "title": game_title(game)} for game in board.games],
        "headline": _headline(board),
        "curves": [c for game in board.games for label in board.labels if (c := _curves(board, label, game))],
        "gaps": _gaps(board),
        "improvement": _improvement(board),
        "profiles": _profiles(board),
        "efficiency": {
            label: _band(steps, band) for label, (steps, band) in sample_efficiency(board, board.labels).items()
        },
        "stiffness": _stiffness(board, stiff),
        "levels": {game: found for game in board.games if (found := level_map(board, game))},
        "yardstick": _yardstick(records),
        "tables": [_table(table) for table in tables],
        "figures": figures,
        "videos": videos,
        "algorithms": {label: explain(_first(board, label).config) for label in board.labels},
        "configuration": _configuration(board),
        "versions": _versions(board),
        "list": [_run(record) for record in board.records],
        "missing": [{"what": entry.what, "commands": entry.commands} for entry in lacking],
        "problems": [{"where": str(problem.path), "what": problem.text} for problem in problems],
    }


def _profiles(board: Board) -> dict[str, Any]:
    taus, bands = profiles(board, board.labels)
    return {label: _band(taus, band) for label, band in bands.items()}


def _finished(board: Board) -> list[str]:
    return [label for label in board.labels if board.scores(label, "test")]


def _first(board: Board, label: str) -> Record:
    return next(record for record in board.records if record.label == label)


def _interval(found: Interval) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _band(x: Any, band: Band) -> dict[str, list[float]]:
    return {"x": list(map(float, x)), "y": band.value.tolist(), "low": band.low.tolist(), "high": band.high.tolist()}


def _headline(board: Board) -> dict[str, Any]:
    labels = _finished(board)
    found: dict[str, Any] = {"methods": labels, "notes": {}, "normalised": {}}
    for split in ("test", "train"):
        normalised = normalised_scores(board, labels, split)
        found["notes"][split] = normalised.notes
        found["normalised"][split] = {
            m: {
                **_interval(s),
                "std": s.std,
                "paper": p.mean if (p := papers_score(split, m, normalised.games)) else None,
            }
            for m, s in normalised.scores.items()
        }
    metrics, games, left = aggregates(board, labels)
    found["minmax"] = {
        m: {name: {**_interval(v), "paper": papers_aggregate(board, m, name, games)} for name, v in of_method.items()}
        for m, of_method in metrics.items()
    }
    found["shared"] = [f"Over {named(games)}."] if games else []
    if left:
        found["shared"].append(f"Without a finished run on all of these games: {', '.join(map(method_title, left))}.")
    return found


def _curves(board: Board, label: str, game: str) -> dict[str, Any] | None:
    found = {name: c for name, column in COLUMNS.items() if (c := board.curve(label, game, column)) is not None}
    if not found:
        return None
    first = found["train"]
    return {
        "game": game, "label": label, "steps": first.steps.tolist(), "seeds": first.seeds.tolist(),
        **{name: _mean_std(c) for name, c in found.items()},
    }  # fmt: skip


def _mean_std(curve: Curve) -> dict[str, list[float]]:
    return {"mean": curve.mean.tolist(), "std": curve.std.tolist()}


def _gaps(board: Board) -> list[dict[str, Any]]:
    """Return on training levels less return on unseen ones, of finished runs."""
    rows = []
    for game in board.games:
        for label in board.labels:
            train, test = (board.finals(label, game, split) for split in ("train", "test"))
            if len(test) and len(train) == len(test):
                gaps = train - test
                spread = float(gaps.std(ddof=1)) if len(gaps) > 1 else 0.0
                rows.append(
                    {"game": game, "label": label, "gap": float(gaps.mean()), "std": spread, "seeds": len(gaps)}
                )
    return rows


def _improvement(board: Board) -> list[dict[str, Any]]:
    labels = _finished(board)
    found = []
    for x in labels:
        for y in labels:
            if x != y and (chance := improvement(board, x, y)):
                found.append({"label": x, "over": y, **_interval(chance)})
    return found


def _stiffness(board: Board, stiff: Stiff) -> dict[str, Any]:
    training = []
    for record in board.records:
        if record.stiffness:
            rows = record.stiffness[:: -(-len(record.stiffness) // POINTS)]
            about = {"label": record.label, "game": record.config.game, "seed": record.config.seed}
            columns = {name: [row[column] for row in rows] for name, column in STIFFNESS.items()}
            training.append(about | {"steps": [row["steps"] for row in rows]} | columns)
    cells = sorted({(r.config.game, r.label) for r in stiff.records})
    levels = []
    for game, label in cells:
        curves = {name: stiff.curve(label, game, column) for name, column in STIFFNESS.items()}
        if (first := curves["stiffness"]) is not None and len(first.steps) > 1:
            about = {"label": label, "title": method_title(label), "colour": colour(label), "game": game}
            shown = {name: _mean_std(c) for name, c in curves.items() if c is not None}
            levels.append(about | {"x": first.steps.tolist()} | shown)
    return {"training": training, "levels": levels, "sentence": stiff.sentence() if stiff.records else ""}


def _yardstick(records: list[Record]) -> list[dict[str, Any]]:
    """PPO runs of the paper's sizes, however long, against published PPO returns."""
    rows = []
    for record in records:
        band = paper.ppo_band().get(record.config.game)
        if record.label != "ppo" or band is None or not record.evaluations or not _paper_sizes(record):
            continue
        steps = [row["steps"] for row in record.evaluations]
        points = []
        for at, train, test in zip(band["steps"], band["train"], band["test"], strict=True):
            if at > max(steps) or at < min(steps):
                continue
            own = {
                s: float(np.interp(at, steps, [r[f"{s}_return"] for r in record.evaluations]))
                for s in ("train", "test")
            }
            points.append({"steps": int(at), "published": {"train": float(train), "test": float(test)}, "own": own})
        if points:
            rows.append({"game": game_title(record.config.game), "seed": record.config.seed, "points": points})
    return rows


def _paper_sizes(record: Record) -> bool:
    usual = papers_setting()
    return (record.setting.levels, record.setting.rest) == (usual.levels, usual.rest)


def _table(table: Table) -> dict[str, Any]:
    cells = [[table.cells[row, column] for column in table.columns] for row in table.rows]
    texts = [[{"own": table.own(c), "paper": table.papers(c) if c.paper else ""} for c in row] for row in cells]
    return {
        "name": table.name, "title": table.title, "corner": table.corner, "columns": table.columns, "rows": table.rows,
        "cells": texts, "notes": table.notes,
    }  # fmt: skip


def _videos(board: Board, problems: list[Problem]) -> list[dict[str, str]]:
    """One a game, of the method with the best return on unseen levels that has one."""
    found, room = [], VIDEO_BYTES
    for game in board.games:
        having = [r for r in board.records if r.config.game == game and (r.path / "replay.mp4").exists()]
        for record in sorted(having, key=lambda r: -float(r.evaluations[-1].get("test_return", 0))):
            try:
                data = read_regular(record.path / "replay.mp4", room)
            except OSError as error:
                problems.append(Problem(record.path, f"replay.mp4 is not shown: {error.strerror}"))
                continue
            room -= len(data)
            source = "data:video/mp4;base64," + base64.b64encode(data).decode()
            found.append({"game": game_title(game), "label": record.label, "name": record.name, "source": source})
            break
    return found


def _configuration(board: Board) -> list[dict[str, Any]]:
    """Every setting: one value if all runs have it, else those of each method."""
    rows: dict[str, dict[str, set[str]]] = {}
    for record in board.records:
        for name, value, _ in dotted(record.config):
            if name not in ("method", "game", "seed"):
                rows.setdefault(name, {}).setdefault(record.label, set()).add(written(value))
    found = []
    for name, values in rows.items():
        every = set.union(*values.values())
        same = len(every) == 1 and len(values) == len(board.labels)
        texts = {label: " or ".join(sorted(some)) for label, some in values.items()}
        found.append({"name": name, "value": next(iter(every)) if same else None, "values": texts})
    return found


def _versions(board: Board) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for record in board.records:
        for name, version in record.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in sorted(found.items())}


def _run(record: Record) -> dict[str, Any]:
    last = record.evaluations[-1]
    return {
        "method": record.label, "game": record.config.game, "seed": record.config.seed, "steps": record.steps,
        "of": record.setting.steps, "finished": record.finished, "train": last["train_return"],
        "test": last.get("test_return"), "path": str(record.path),
    }  # fmt: skip
