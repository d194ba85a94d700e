"""What the runs at hand do not show, and the command that would make it."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

from dcpg.command import train_command
from dcpg.config import OWN, Config, resolve
from dcpg.errors import BadInput
from dcpg.report.board import Board
from dcpg.report.paper import method_title
from dcpg.report.records import Record, setting_of
from dcpg.report.stiff import Stiff
from dcpg.report.tables import METHODS_OF_TABLES

LEVEL_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)  # the paper's, Appendix A


@dataclass(frozen=True)
class Missing:
    """Something that is not there."""

    what: str
    commands: list[str]


def missing(board: Board, stiff: Stiff) -> list[Missing]:
    """The most useful first."""
    found = [_unfinished(board), _holes(board), _ppo(board), *_tables(board), _ood_actions(board), _levels(board)]
    found += [_videos(board), _stiffness(board, stiff)]
    return [entry for entry in found if entry is not None and entry.commands]


def _unfinished(board: Board) -> Missing | None:
    runs = [record for record in board.records if not record.finished]
    what = f"{len(runs)} unfinished {'runs' if len(runs) > 1 else 'run'}: curves show how far they are, tables wait"
    return Missing(what, [f"dcpg resume {_quoted(record.path)}" for record in runs])


def _holes(board: Board) -> Missing | None:
    """Runs of the grid methods x games x seeds that others of the grid have."""
    seeds = sorted({record.config.seed for record in board.records})
    commands = []
    for label in board.labels:
        template = next(record for record in board.records if record.label == label)
        for game in board.games:
            have = {record.config.seed for record in board.runs(label, game)}
            if game.startswith(OWN):
                continue
            commands += [_train(template, game, seed) for seed in seeds if seed not in have]
    what = (
        f"{len(commands)} of {len(board.labels) * len(board.games) * len(seeds)} runs of the grid that the others span"
    )
    return Missing(what, commands)


def _ppo(board: Board) -> Missing | None:
    if "ppo" in board.labels or not board.records:
        return None
    seeds = sorted({record.config.seed for record in board.records})
    commands = _trainings(board, "ppo", seeds)
    return Missing("PPO runs of the same setting: without them there are no PPO-normalised scores", commands)


def _tables(board: Board) -> list[Missing]:
    """Methods of the paper's tables that have no run, of tables that have at least one."""
    lacking: dict[str, list[str]] = {}
    for name, methods in METHODS_OF_TABLES.items():
        if any(m in board.labels for m in methods):
            for m in methods:
                if m not in board.labels and m != "ppo":
                    lacking.setdefault(m, []).append(f"Table {name.removeprefix('table')}")
    seeds = sorted({record.config.seed for record in board.records})
    return [
        Missing(f"{method_title(m)}, for {', '.join(tables)}", _trainings(board, m, seeds))
        for m, tables in lacking.items()
    ]


def _ood_actions(board: Board) -> Missing | None:
    runs = [
        record
        for label in METHODS_OF_TABLES["table10"]
        for record in board.runs(label, "bigfish")
        if record.finished and record.analyses.get("ood-actions", {}).get("steps", 0) < record.setting.steps
    ]
    commands = [f"dcpg analyse ood-actions {_quoted(record.path)}" for record in runs]
    return Missing("Table 10: wrong actions that discriminators believe", commands)


def _levels(board: Board) -> Missing | None:
    runs = [_first(board, label, game) for label in board.labels for game in _procgen(board)]
    commands = [f"dcpg analyse levels {_quoted(r.path)}" for r in runs if r is not None and "levels" not in r.analyses]
    return Missing("The return on every single level (the map shows the levels of evaluations until then)", commands)


def _videos(board: Board) -> Missing | None:
    commands = []
    for game in _procgen(board):
        runs = [r for label in board.labels if (r := _first(board, label, game)) is not None]
        if runs and not any((r.path / "replay.mp4").is_file() for r in runs):
            best = max(runs, key=lambda r: float(r.evaluations[-1].get("test_return", 0)))
            commands.append(f"dcpg record {_quoted(best.path)}")
    return Missing("A video on unseen levels", commands)


def _stiffness(board: Board, stiff: Stiff) -> Missing | None:
    """Figures 2 and 7, for the games at hand."""
    if any(not _trainings(board, m, [0]) for m in ("ppg", "dcpg")):
        return None
    have = {(r.label, r.config.game, r.setting.level_count) for r in stiff.records}
    commands = []
    for game in _procgen(board):
        for m in ("ppg", "dcpg"):
            for n in LEVEL_COUNTS:
                if (m, game, n) not in have:
                    config = other_method(board, m, game, 0)
                    levels = dataclasses.replace(config.levels, count=n, seeds=())
                    command = train_command(dataclasses.replace(config, levels=levels, analyse=("stiffness",)))
                    out = f"runs/stiffness/{game}-{m}-{n}"
                    commands.append(f"{command} --out {out}")
    return Missing("Figures 2 and 7: value stiffness against the number of training levels", commands)


def _trainings(board: Board, method: str, seeds: list[int]) -> list[str]:
    """The commands for a method on every game at hand; none if the method refuses this setting."""
    try:
        return [train_command(other_method(board, method, game, s)) for game in _procgen(board) for s in seeds]
    except BadInput:
        return []


def other_method(board: Board, method: str, game: str, seed: int) -> Config:
    """The configuration of another method in the board's setting."""
    template = board.records[0].config
    config = resolve(method, game, preset=template.preset, steps=template.steps, seed=seed)
    levels = dataclasses.replace(
        config.levels, start=template.levels.start, count=template.levels.count, seeds=template.levels.seeds
    )
    config = dataclasses.replace(
        config, rollout_length=template.rollout_length, env=template.env, levels=levels, network=template.network,
        evaluation=template.evaluation, machine=template.machine,
    )  # fmt: skip
    assert setting_of(config) == board.setting
    return config


def _train(template: Record, game: str, seed: int) -> str:
    return train_command(dataclasses.replace(template.config, game=game, seed=seed))


def _procgen(board: Board) -> list[str]:
    return [game for game in board.games if not game.startswith(OWN)]


def _first(board: Board, label: str, game: str) -> Record | None:
    return next((r for r in board.runs(label, game) if r.finished), None)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
