"""Run directories made of seeded numbers, for tests of the report: nothing in them was ever trained."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dcpg.config.resolve import resolve
from dcpg.config.schema import SCHEMA, Config
from dcpg.training.trainer import versions

PAPER_STEPS = 24_985_600  # 1,525 rollouts of 64 x 256
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
Row = dict[str, Any]


@dataclass
class Run:
    """What was written: the numbers as they were drawn."""

    path: Path
    method: str
    game: str
    seed: int
    rows: list[Row]
    metrics: list[Row] = field(default_factory=list)
    levels: int = 200
    wrong: list[int] = field(default_factory=list)  # transitions with 0, 1, ... wrong actions believed
    raw: list[int] = field(default_factory=list)

    def column(self, name: str) -> list[tuple[int, float]]:
        return [(row["steps"], row[name]) for row in self.rows]


@cache
def written_versions() -> dict[str, str]:
    return versions()


def configuration(method: str, game: str, seed: int, *, threads: int = 2, **more: Any) -> Config:
    """As `resolve` gives it, on a machine with so many threads."""
    settings = {"machine.threads": threads} | dict(more.pop("settings", {}))
    return resolve(method, game, seed=seed, settings=settings, **more)


def rows_of(
    config: Config, draw: random.Random, *, rollouts: Iterable[int] | None = None, level: float = 5.0, episodes: int = 3
) -> list[Row]:
    """Evaluations with every column that the trainer writes; returns grow towards `level`."""
    last = config.rollouts
    found = []
    for k, rollout in enumerate(rollouts if rollouts is not None else (1, 501, 1001, last)):
        row: Row = {"k": k, "rollout": rollout, "steps": rollout * config.rollout_size}
        for split, share in (("train", 1.0), ("test", 0.8)):
            centre = level * share * (0.2 + 0.8 * rollout / last)
            returns = [round(centre * draw.uniform(0.7, 1.3), 3) for _ in range(episodes)]
            row |= split_columns(split, returns, draw)
        found.append(row)
    return found


def split_columns(split: str, returns: Sequence[float], draw: random.Random) -> Row:
    true = draw.uniform(1, 9)
    levels = range(5) if split == "train" else range(1000, 1005)
    return {
        f"{split}_return": sum(returns) / len(returns),
        f"{split}_returns": list(returns),
        f"{split}_levels": [draw.choice(levels) for _ in returns],
        f"{split}_predicted_value": draw.uniform(1, 9),
        f"{split}_true_value": true,
        f"{split}_true_value_own_gamma": true,
    }


def stiffness_rows(config: Config, draw: random.Random, count: int = 3) -> list[Row]:
    found = []
    for i in range(1, count + 1):
        row: Row = {
            "rollout": i,
            "steps": i * config.rollout_size,
            "episodes": 4,
            "reward_variance": draw.uniform(1, 2),
        }
        if i != 2:  # not every rollout is measured
            row |= {
                "stiffness": draw.uniform(0.05, 0.6),
                "stiffness_sign_free": draw.uniform(0.1, 0.7),
                "stiffness_sign_agreement": draw.uniform(-0.2, 0.9),
                "stiffness_states": 16_384,
            }
        found.append(row)
    return found


def write(
    path: Path,
    config: Config,
    rows: Sequence[Row],
    metrics: Sequence[Row] = (),
    analyses: Mapping[str, Any] = NO_SETTINGS,
    **changed: Any,
) -> Path:
    """The files of a run that the report reads, marked as what they are; `changed` goes into config.json."""
    path.mkdir(parents=True)
    (path / "SYNTHETIC").write_text("Made of seeded numbers by the tests; never trained.\n")
    plain = {"schema": SCHEMA, **config.to_json(), "init": None, "versions": written_versions()} | changed
    (path / "config.json").write_text(json.dumps(plain, indent=2) + "\n")
    (path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if metrics:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    for name, found in analyses.items():
        (path / "analysis").mkdir(exist_ok=True)
        (path / "analysis" / f"{name}.json").write_text(json.dumps(found) + "\n")
    return path


def ood_actions(run: Run, config: Config, steps: int) -> Row:
    """analysis/ood-actions.json from transitions with 0, 1, ... wrong actions."""
    found: Row = {"analysis": "ood-actions", "method": config.method, "game": config.game, "seed": config.seed}
    for prefix, counts in (("", run.wrong), ("raw_", run.raw)):
        total = sum(counts)
        mean = sum(k * n for k, n in enumerate(counts)) / total
        squares = sum(n * (k - mean) ** 2 for k, n in enumerate(counts))
        found |= {f"{prefix}mean": mean, f"{prefix}std": (squares / (total - 1)) ** 0.5, f"{prefix}counts": counts}
    left_out = sum(run.raw) - sum(run.wrong)
    return found | {"transitions": sum(run.wrong), "left_out": left_out, "true_believed": 0.9, "steps": steps}


def some(path: Path, method: str, game: str = "bigfish", seed: int = 0, *, level: float = 5.0, **more: Any) -> Run:
    """One small finished run of the preset `tiny` (2,048 steps), or of whatever `more` says."""
    config = configuration(method, game, seed, **{"preset": "tiny", **more})
    draw = random.Random(f"{method} {game} {seed} {sorted(more.items())}")
    last = config.rollouts
    rows = rows_of(config, draw, rollouts=sorted({1, max(last // 2, 1), last}), level=level)
    write(path, config, rows)
    return Run(path, method, game, seed, rows)
