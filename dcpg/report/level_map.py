"""Returns level by level, and pictures of where levels begin."""

from __future__ import annotations

import base64
import functools
import io
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.config.schema import OWN, Config
from dcpg.core.evaluation import ROUND
from dcpg.envs.levels import EachOnce
from dcpg.envs.procgen import Procgen
from dcpg.report.comparison import Board
from dcpg.runs.records import Record

MOST = 200  # levels of a map


COLUMNS = 20  # of a sheet of first frames


SIZE = 64  # pixels of a first frame


ENDS = 8  # hardest and easiest unseen levels that are shown


def level_map(board: Board, game: str) -> dict[str, Any] | None:
    """The mean return of each method on each training level, and the hardest and easiest unseen levels."""
    if game.startswith(OWN):
        return None
    per_level = {label: _training_levels(board.runs(label, game)) for label in board.labels}
    per_level = {label: found for label, found in per_level.items() if found}
    levels = sorted({level for found in per_level.values() for level in found})[:MOST]
    if not levels:
        return None
    returns = {
        label: [round(float(np.mean(found[level])), 3) if level in found else None for level in levels]
        for label, found in per_level.items()
    }
    nobody = [level for level in levels if all(max(found.get(level, [0.0])) <= 0 for found in per_level.values())]
    unseen = {label: ends for label in board.labels if (ends := _unseen(board.runs(label, game)))}
    frames = sorted({*levels, *(entry["level"] for ends in unseen.values() for entry in ends)})
    config = board.runs(next(iter(per_level)), game)[0].config
    return {
        "levels": levels,
        "returns": returns,
        "nobody": nobody,
        "unseen": unseen,
        "analysed": sorted(
            label for label in per_level if any("levels" in r.analyses for r in board.runs(label, game))
        ),
        "sheet": {"columns": COLUMNS, "size": SIZE, "of": frames, "image": sheet(config, frames)},
    }


def _training_levels(runs: list[Record]) -> dict[int, list[float]]:
    """Level -> returns, from `dcpg analyse levels` where it was run and from the newest evaluations elsewhere."""
    found: dict[int, list[float]] = defaultdict(list)
    for record in runs:
        if "levels" in record.analyses:
            kept = record.analyses["levels"]["train"]
            pairs = list(zip(kept["levels"], kept["returns"], strict=True))
        else:
            newest = [row for row in record.evaluations if "train_levels" in row]
            pairs = [p for row in newest for p in zip(row["train_levels"], row["train_returns"], strict=True)]
        for level, value in pairs:
            found[level].append(float(value))
    return dict(found)


def _unseen(runs: list[Record]) -> list[dict[str, Any]]:
    """The unseen levels with the lowest and the highest returns of the first run that was analysed."""
    for record in runs:
        if "levels" in record.analyses:
            kept = record.analyses["levels"]["test"]
            order = np.argsort(kept["returns"], kind="stable")
            most = min(ENDS, len(order) // 2)
            chosen = [*order[:most], *(order[-most:] if most else [])]
            return [{"level": int(kept["levels"][i]), "return": float(kept["returns"][i])} for i in chosen]
    return []


def sheet(config: Config, levels: list[int]) -> str:
    """The first frames of levels, row by row in one picture, as a data address."""
    return _sheet(config.game, config.env.mode, tuple(levels))


@functools.lru_cache(maxsize=32)
def _sheet(game: str, mode: str, levels: tuple[int, ...]) -> str:
    """Made once while a report is watched."""
    from PIL import Image

    frames = first_frames(game, mode, levels)
    rows = -(-len(levels) // COLUMNS)
    picture = np.zeros((rows * SIZE, COLUMNS * SIZE, 3), np.uint8)
    for i, frame in enumerate(frames):
        r, k = divmod(i, COLUMNS)
        picture[r * SIZE : (r + 1) * SIZE, k * SIZE : (k + 1) * SIZE] = frame
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "WEBP", quality=70)
    return "data:image/webp;base64," + base64.b64encode(out.getvalue()).decode()


def first_frames(game: str, mode: str, levels: Sequence[int]) -> NDArray[np.uint8]:
    """uint8 [levels, 64, 64, 3]."""
    frames = []
    for start in range(0, len(levels), ROUND):
        some = levels[start : start + ROUND]
        env = Procgen(len(some), game, seed=0, mode=mode, levels=EachOnce(some))
        frames.append(env.observe()[0])
        env.close()
    return np.concatenate(frames)
