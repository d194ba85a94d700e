"""Returns level by level, with pictures of the levels' first frames."""

from __future__ import annotations

import base64
import functools
import io
from collections import defaultdict
from typing import Any

import numpy as np

from dcpg.analysis.pictures import first_frames
from dcpg.config.schema import OWN
from dcpg.envs.library import library
from dcpg.errors import BadInput
from dcpg.report.comparison import Comparison
from dcpg.runs.records import Record

MOST = 200  # levels of a map
MOST_DRAWN = 1000  # levels whose first frames are drawn
COLUMNS = 20  # of a sheet of first frames
SIZE = 64  # pixels of a first frame
ENDS = 8  # hardest and easiest unseen levels that are shown


def frames_missing() -> str | None:
    """Why the first frames of levels cannot be drawn here, if they cannot: tables and charts need no Procgen."""
    try:
        _ = library().loaded
    except BadInput as error:
        return str(error)
    return None


def level_map(comparison: Comparison, game: str) -> dict[str, Any] | None:
    """The mean return of each method on each training level, and the hardest and easiest unseen levels."""
    if game.startswith(OWN):
        return None
    per_level = {label: _training_levels(comparison.runs(label, game)) for label in comparison.labels}
    per_level = {label: found for label, found in per_level.items() if found}
    played = sorted({level for found in per_level.values() for level in found})
    levels = played[:MOST]
    if not levels:
        return None
    returns = {
        label: [round(float(np.mean(found[level])), 3) if level in found else None for level in levels]
        for label, found in per_level.items()
    }
    nobody = [level for level in levels if all(max(found.get(level, [0.0])) <= 0 for found in per_level.values())]
    unseen = {label: ends for label in comparison.labels if (ends := _unseen(comparison.runs(label, game)))}
    wanted = dict.fromkeys((*levels, *(entry["level"] for ends in unseen.values() for entry in ends)))
    shown = sorted(list(wanted)[:MOST_DRAWN])
    mode = comparison.runs(next(iter(per_level)), game)[0].config.env.mode
    return {
        "levels": levels,
        "more": len(played) - len(levels),  # that were played and are not shown
        "returns": returns,
        "nobody": nobody,
        "unseen": unseen,
        "analysed": sorted(
            label for label in per_level if all("levels" in r.analyses for r in comparison.runs(label, game))
        ),
        "sheet": {"columns": COLUMNS, "size": SIZE, "of": shown, "image": _sheet(game, mode, tuple(shown))},
    }


def _training_levels(runs: list[Record]) -> dict[int, list[float]]:
    """Level -> returns: from `dcpg analyse levels` if it was run, else from the newest evaluations."""
    found: dict[int, list[float]] = defaultdict(list)
    for record in runs:
        if "levels" in record.analyses:
            analysed = record.analyses["levels"]["train"]
            played = [(analysed["levels"], analysed["returns"])]
        else:
            played = [(s.levels or [], s.returns or []) for s in (e.splits["train"] for e in record.evaluations)]
        for levels, returns in played:
            for level, value in zip(levels, returns, strict=True):
                found[level].append(float(value))
    return dict(found)


def _unseen(runs: list[Record]) -> list[dict[str, Any]]:
    """The unseen levels with the lowest and the highest returns, of the first run that was analysed."""
    for record in runs:
        if "levels" in record.analyses:
            analysed = record.analyses["levels"]["test"]
            order = np.argsort(analysed["returns"], kind="stable")
            most = min(ENDS, len(order) // 2)
            chosen = [*order[:most], *(order[-most:] if most else [])]
            return [{"level": int(analysed["levels"][i]), "return": float(analysed["returns"][i])} for i in chosen]
    return []


def _sheet(game: str, mode: str, levels: tuple[int, ...]) -> str:
    return "" if frames_missing() else sheet(game, mode, levels)


@functools.lru_cache(maxsize=32)  # `dcpg report --watch` makes the page again and again
def sheet(game: str, mode: str, levels: tuple[int, ...]) -> str:
    """The first frames of levels, row by row in one picture, as a data address."""
    from PIL import Image

    rows = -(-len(levels) // COLUMNS)
    picture = np.zeros((rows * SIZE, COLUMNS * SIZE, 3), np.uint8)
    for i, frame in enumerate(first_frames(game, mode, levels)):
        r, k = divmod(i, COLUMNS)
        picture[r * SIZE : (r + 1) * SIZE, k * SIZE : (k + 1) * SIZE] = frame
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "WEBP", quality=70)
    return "data:image/webp;base64," + base64.b64encode(out.getvalue()).decode()
