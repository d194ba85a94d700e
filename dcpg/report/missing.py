"""What the runs at hand do not show, and the command that would make it."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

from dcpg.config.command import train_command
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.report.comparison import Board, Stiff
from dcpg.report.paper import method_title
from dcpg.report.tables import METHODS_OF_TABLES
from dcpg.runs.records import Record, setting_of
from dcpg.settings import dotted

LEVEL_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)  # the paper's, Appendix A


OF_THE_SETTING = (
    "rollout_length", "env.", "levels.start", "levels.count", "levels.seeds", "network.", "evaluation.", "machine.",
)  # fmt: skip


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
    cells = len(board.games) * len(seeds)
    commands = []
    for label in board.labels:
        runs = [record for record in (*board.records, *board.waiting) if record.label == label]
        if 2 * len(runs) < cells and label not in METHODS:
            continue  # a first try of a variant, not a part of the grid
        have = {(record.config.game, record.config.seed) for record in runs}
        for game in _procgen(board):
            commands += [_train(runs[0], game, seed) for seed in seeds if (game, seed) not in have]
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
    """Figures 2 and 7, for the games at hand, in the setting of the runs that were measured, if there are any."""
    have = {(r.label, r.config.game, r.setting.level_count) for r in stiff.records}
    template = (stiff.records or board.records)[0].config
    commands = []
    try:
        for game in _procgen(board):
            for m in ("ppg", "dcpg"):
                config = other_method(template, m, game, 0)
                for n in LEVEL_COUNTS:
                    if (m, game, n) not in have:
                        levels = dataclasses.replace(config.levels, count=n, seeds=())
                        command = train_command(dataclasses.replace(config, levels=levels, analyse=("stiffness",)))
                        commands.append(f"{command} --out runs/stiffness/{game}-{m}-{n}")
    except BadInput:  # this setting is none for these methods or numbers of levels
        return None
    return Missing("Figures 2 and 7: value stiffness against the number of training levels", commands)


def _trainings(board: Board, method: str, seeds: list[int]) -> list[str]:
    """The commands for a method on every game at hand; none if the method refuses this setting."""
    try:
        template = board.records[0].config
        return [train_command(other_method(template, method, game, s)) for game in _procgen(board) for s in seeds]
    except BadInput:
        return []


def other_method(template: Config, method: str, game: str, seed: int) -> Config:
    """The configuration of another method in the same setting."""
    settings = {name: value for name, value, _ in dotted(template) if name.startswith(OF_THE_SETTING)}
    config = resolve(method, game, preset=template.preset, steps=template.steps, seed=seed, settings=settings)
    assert setting_of(config) == setting_of(template)
    return config


def _train(template: Record, game: str, seed: int) -> str:
    return train_command(dataclasses.replace(template.config, game=game, seed=seed))


def _procgen(board: Board) -> list[str]:
    return [game for game in board.games if not game.startswith(OWN)]


def _first(board: Board, label: str, game: str) -> Record | None:
    return next((r for r in board.runs(label, game) if r.finished), None)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
