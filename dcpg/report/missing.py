"""What the runs do not show yet, and the commands that would complete it."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

from dcpg.config.command import train_command
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config
from dcpg.config.written import Recorded
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.report.comparison import Comparison, StiffnessRuns
from dcpg.report.paper import method_title
from dcpg.report.tables import METHODS_OF_TABLES
from dcpg.runs.records import Record, setting_today
from dcpg.settings import dotted

LEVEL_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)  # paper, Appendix A
OF_THE_SETTING = (
    "rollout_length", "env.", "levels.start", "levels.count", "levels.seeds", "network.channels", "network.features",
    "network.discriminator", "evaluation.", "machine.",
)  # fmt: skip


@dataclass(frozen=True)
class Missing:
    """A part of the report that cannot be made, and the commands that would make it possible."""

    what: str
    commands: list[str]


def missing(comparison: Comparison, measured: StiffnessRuns) -> list[Missing]:
    """Everything that is missing, the most useful first."""
    found = [_unfinished(comparison), _holes(comparison), _ppo(comparison), *_tables(comparison)]
    found += [_ood_actions(comparison), _levels(comparison), _videos(comparison), _stiffness(comparison, measured)]
    return [entry for entry in found if entry is not None and entry.commands]


def _unfinished(comparison: Comparison) -> Missing:
    runs = [record for record in comparison.records if not record.finished]
    what = f"{len(runs)} unfinished {'runs' if len(runs) > 1 else 'run'}: curves show how far they are, tables wait"
    return Missing(what, [f"dcpg resume {_quoted(record.path)}{_code_of(record)}" for record in runs])


def _holes(comparison: Comparison) -> Missing:
    """Runs of the grid of methods, games and seeds that the other runs span."""
    seeds = _seeds(comparison)
    cells = len(comparison.games) * len(seeds)
    commands = []
    for label in comparison.labels:
        runs = [record for record in (*comparison.records, *comparison.waiting) if record.label == label]
        if 2 * len(runs) < cells and label not in METHODS:
            continue  # a first try of a variant, not a part of the grid
        if isinstance(runs[0].config, Recorded) or setting_today(runs[0].config) != comparison.setting:
            continue  # from a plugin, or the preset has changed since: a new run would not be comparable
        have = {(record.game, record.config.seed) for record in runs}
        commands += [
            train_command(dataclasses.replace(runs[0].config, game=game, seed=seed), plugins=runs[0].written.plugins)
            for game in _procgen(comparison)
            for seed in seeds
            if (game, seed) not in have
        ]
    total = len(comparison.labels) * cells
    return Missing(f"{len(commands)} of {total} runs of the grid that the others span", commands)


def _ppo(comparison: Comparison) -> Missing | None:
    if "ppo" in comparison.labels:
        return None
    commands = _trainings(comparison, "ppo")
    return Missing("PPO runs of the same setting: without them there are no PPO-normalised scores", commands)


def _tables(comparison: Comparison) -> list[Missing]:
    """Methods without a run that belong to one of the paper's tables, if another method of the table has one."""
    absent: dict[str, list[str]] = {}
    for name, methods in METHODS_OF_TABLES.items():
        if any(m in comparison.labels for m in methods):
            for m in methods:
                if m not in comparison.labels and m != "ppo":
                    absent.setdefault(m, []).append(f"Table {name.removeprefix('table')}")
    return [
        Missing(f"{method_title(m)}, for {', '.join(tables)}", _trainings(comparison, m))
        for m, tables in absent.items()
    ]


def _ood_actions(comparison: Comparison) -> Missing:
    runs = [
        record
        for label in METHODS_OF_TABLES["table10"]
        for record in comparison.runs(label, "bigfish")
        if record.finished and record.analyses.get("ood-actions", {}).get("steps", 0) < record.setting.steps
    ]
    commands = [f"dcpg analyse ood-actions {_quoted(record.path)}" for record in runs]
    return Missing("Table 10: wrong actions that discriminators believe", commands)


def _levels(comparison: Comparison) -> Missing:
    runs = [_first(comparison, label, game) for label in comparison.labels for game in _procgen(comparison)]
    commands = [
        f"dcpg analyse levels {_quoted(r.path)}{_code_of(r)}"
        for r in runs
        if r is not None and "levels" not in r.analyses
    ]
    return Missing("The return on every single level (the map shows the levels of evaluations until then)", commands)


def _videos(comparison: Comparison) -> Missing:
    commands = []
    for game in _procgen(comparison):
        runs = [r for label in comparison.labels if (r := _first(comparison, label, game)) is not None]
        if runs and not any((r.path / "replay.mp4").is_file() for r in runs):
            best = max(runs, key=lambda r: r.evaluations[-1].splits["test"].mean)
            commands.append(f"dcpg record {_quoted(best.path)}{_code_of(best)}")
    return Missing("A video on unseen levels", commands)


def _stiffness(comparison: Comparison, measured: StiffnessRuns) -> Missing | None:
    """Figures 2 and 7 for the games of the comparison, in the setting of the measured runs if there are any."""
    have = {(r.label, r.game, r.setting.level_count) for r in measured.records}
    template = (measured.records or comparison.records)[0]
    commands = []
    try:
        for game in _procgen(comparison):
            for m in ("ppg", "dcpg"):
                config = other_method(template, m, game, 0)
                for n in LEVEL_COUNTS:
                    if (m, game, n) not in have:
                        levels = dataclasses.replace(config.levels, count=n, seeds=())
                        command = train_command(dataclasses.replace(config, levels=levels, analyse=("stiffness",)))
                        commands.append(f"{command} --out runs/stiffness/{game}-{m}-{n}")
    except BadInput:  # these methods or numbers of levels cannot have this setting
        return None
    return Missing("Figures 2 and 7: value stiffness against the number of training levels", commands)


def _trainings(comparison: Comparison, method: str) -> list[str]:
    """The commands for a method on every game and seed of the comparison; none if it cannot have this setting."""
    template, seeds = comparison.records[0], _seeds(comparison)
    try:
        return [train_command(other_method(template, method, g, s)) for g in _procgen(comparison) for s in seeds]
    except BadInput:
        return []


def other_method(template: Record, method: str, game: str, seed: int) -> Config:
    """The configuration of another method in the setting of a run."""
    c = template.config
    settings = {name: value for name, value, _ in dotted(c) if name.startswith(OF_THE_SETTING)}
    config = resolve(method, game, preset=c.preset, steps=c.steps, seed=seed, settings=settings)
    if setting_today(config) != template.setting:
        raise BadInput(f"The preset {c.preset} has changed since {template.path} was made.")
    return config


def _seeds(comparison: Comparison) -> list[int]:
    return sorted({record.config.seed for record in comparison.records})


def _procgen(comparison: Comparison) -> list[str]:
    return [game for game in comparison.games if not game.startswith(OWN)]


def _first(comparison: Comparison, label: str, game: str) -> Record | None:
    return next((r for r in comparison.runs(label, game) if r.finished), None)


def _code_of(record: Record) -> str:
    """The options that name a run's plugins and its own environment."""
    words = [word for one in record.written.plugins for word in ("--plugin", one["plugin"])]
    own = record.written.environment
    if own is not None and own.kind != "gymnasium":
        words += ["--env", own.id, *(["--test-env", own.test_id] if own.test_id is not None else [])]
    return f" {shlex.join(words)}" if words else ""


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
