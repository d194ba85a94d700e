"""Run directories made of random numbers, for tests of the report: nothing in them was ever trained."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.config.written import to_write

PAPER_STEPS = 24_985_600  # 1,525 rollouts of 64 x 256
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
Row = dict[str, Any]
# a table of presets as a later release may have it
LAPTOP_NOW = {"steps": 400_000, "rollout_length": 64, "algorithm.N_pi": 8, "network.channels": (4, 8)}
TINY_SIZES: dict[str, Any] = {
    "steps": 2048, "rollout_length": 16, "env.num_envs": 8, "env.frame_size": 32, "network.channels": (4, 8, 8),
    "network.features": 32, "evaluation.episodes": 8, "evaluation.every": 16,
}  # fmt: skip


@dataclass
class Run:
    """A run directory and the numbers that were written to it."""

    path: Path
    method: str
    game: str
    seed: int
    rows: list[Row]
    metrics: list[Row] = field(default_factory=list)
    levels: int = 200
    wrong: list[int] = field(default_factory=list)  # number of transitions with 0, 1, ... wrong actions believed
    raw: list[int] = field(default_factory=list)

    def column(self, name: str) -> list[tuple[int, float]]:
        return [(row["steps"], row[name]) for row in self.rows]


def configuration(method: str, game: str, seed: int, *, threads: int = 2, **more: Any) -> Config:
    """The configuration of a run on a machine with this number of threads, in float32."""
    settings = {"machine.threads": threads, "machine.precision": "fp32"} | dict(more.pop("settings", {}))
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
    """The first rollouts and the last one."""
    found = []
    for i in (*range(1, count), config.rollouts):
        row: Row = {
            "rollout": i,
            "steps": i * config.rollout_size,
            "episode_returns": [1.0, 2.5],
            "episode_lengths": [20, 30],
            "episode_levels": [3, 4],
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
    """Write the files that the report reads, marked as synthetic; `changed` goes into config.json."""
    path.mkdir(parents=True)
    (path / "SYNTHETIC").write_text("Made of seeded numbers by the tests; never trained.\n")
    plain = to_write(config, None) | changed
    (path / "config.json").write_text(json.dumps(plain, indent=2) + "\n")
    (path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if metrics:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    for name, found in analyses.items():
        (path / "analysis").mkdir(exist_ok=True)
        (path / "analysis" / f"{name}.json").write_text(json.dumps(found) + "\n")
    return path


def ood_actions(run: Run, config: Config, steps: int) -> Row:
    """The contents of analysis/ood-actions.json, from the numbers of transitions with 0, 1, ... wrong actions."""
    found: Row = {"analysis": "ood-actions", "method": config.method, "game": config.game, "seed": config.seed}
    for prefix, counts in (("", run.wrong), ("raw_", run.raw)):
        total = sum(counts)
        mean = sum(k * n for k, n in enumerate(counts)) / total
        squares = sum(n * (k - mean) ** 2 for k, n in enumerate(counts))
        found |= {f"{prefix}mean": mean, f"{prefix}std": (squares / (total - 1)) ** 0.5, f"{prefix}counts": counts}
    left_out = sum(run.raw) - sum(run.wrong)
    return found | {"transitions": sum(run.wrong), "left_out": left_out, "true_believed": 0.9, "steps": steps}


def some(path: Path, method: str, game: str = "bigfish", seed: int = 0, *, level: float = 5.0, **more: Any) -> Run:
    """One small finished run of the preset `tiny` (2,048 steps), or as `more` says."""
    config = configuration(method, game, seed, **{"preset": "tiny", **more})
    draw = random.Random(f"{method} {game} {seed} {sorted(more.items())}")
    last = config.rollouts
    rows = rows_of(config, draw, rollouts=sorted({1, max(last // 2, 1), last}), level=level)
    write(path, config, rows)
    return Run(path, method, game, seed, rows)


def few(root: Path, methods: tuple[str, ...] = ("ppo", "dcpg"), seeds: tuple[int, ...] = (0, 1, 2)) -> list[Run]:
    """Small finished runs on two games."""
    return [
        some(root / f"{game}-{method}-{seed}", method, game, seed)
        for method in methods for game in ("bigfish", "maze") for seed in seeds
    ]  # fmt: skip


def edit(name: str, change: Callable[[list[Row]], Any]) -> Callable[[Path], None]:
    """A function that changes the rows of a file of a run; text that `change` returns is written as it is."""

    def damage(run: Path) -> None:
        rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
        text = change(rows)
        (run / name).write_text(text if text is not None else "".join(json.dumps(row) + "\n" for row in rows))

    return damage


def configured(change: Callable[[Row], Any]) -> Callable[[Path], None]:
    """A function that changes the config.json of a run."""

    def damage(run: Path) -> None:
        plain = json.loads((run / "config.json").read_text())
        change(plain)
        (run / "config.json").write_text(json.dumps(plain))

    return damage


def lines(rows: list[Row]) -> list[str]:
    return [json.dumps(row) + "\n" for row in rows]


def of_schema_5(path: Path, **more: Any) -> Path:
    """A run of the preset `laptop` as the release before wrote it: without the values of its preset."""
    some(path, "dcpg", preset="laptop", **more)
    plain = json.loads((path / "config.json").read_text())
    assert plain.pop("preset_values")
    (path / "config.json").write_text(json.dumps(plain | {"schema": 5}))
    return path


def of_a_stranger(path: Path, words: str, seed: int = 0, *, plugin: bool = True) -> Path:
    """A finished run whose environment and versions are named with these words, and a plugin, method and variant too.

    Without `plugin`, the method is DCPG.
    """
    some(path, "dcpg", seed=seed)
    spaces = {"shape": [4], "dtype": "float32", "actions": 2, "frame": [4], "first_action": 0, "stack": 1}
    source = {"kind": "method", "name": f"m{words}", "plugin": words, "sha256": words}

    def rename(plain: Row) -> None:
        own = {"name": words, "id": words, "test_id": words, "kind": "code", "spaces": spaces}
        plain |= {"game": f"own:{words}", "environment": own, "procgen": None, "versions": {words: words}}
        if plugin:
            usual = {f"algorithm.{name}": value for name, value in plain["algorithm"].items()}
            plain |= {"method": source["name"], "algorithm": plain["algorithm"] | {"gamma": words}, "init": words}
            plain |= {"plugins": [source], "method_values": usual, "explained": words}

    configured(rename)(path)
    return path
