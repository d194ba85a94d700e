"""What the runs do not show yet, and the commands that would complete it."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dcpg.config.command import train_command
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config
from dcpg.config.written import Recorded
from dcpg.envs.procgen import GAMES
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.report import paper
from dcpg.report.comparison import Comparison, StiffnessRuns
from dcpg.report.likeness import PAPERS_STIFFNESS_STEPS
from dcpg.report.measures import LEVEL_COUNTS
from dcpg.report.paper import method_title
from dcpg.report.tables import METHODS_OF_TABLES
from dcpg.runs.comparable import PRECISION, setting_today
from dcpg.runs.records import Record
from dcpg.settings import dotted
from dcpg.text import counted, printable

OF_THE_SETTING = (
    "rollout_length", "env.", "levels.start", "levels.count", "levels.seeds", "network.channels", "network.features",
    "network.discriminator", "evaluation.", "machine.",
)  # fmt: skip
MOST_COMMANDS = 2_000  # of a grid that are listed: more than the paper's, fewer than hundreds of variants would have
MOST_SOURCES = 5  # of code from outside that are named together


@dataclass(frozen=True)
class Missing:
    """A part of the report that cannot be made, and the commands that would make it possible."""

    what: str
    commands: list[str]
    more: int = 0  # commands that are not listed


def missing(comparison: Comparison, measured: StiffnessRuns) -> list[Missing]:
    """Everything that is missing, the most useful first."""
    found = [_unfinished(comparison), _holes(comparison), _ppo(comparison), *_tables(comparison)]
    found += [_ood_actions(comparison), _levels(comparison), _videos(comparison), _stiffness(comparison, measured)]
    found += [_rest_of_the_paper(comparison)]
    return [entry for entry in found if entry is not None and entry.commands]


def _unfinished(comparison: Comparison) -> Missing:
    runs = [record for record in comparison.records if not record.finished]
    what = f"{counted(len(runs), 'unfinished run')}: curves show how far they are, tables wait"
    return Missing(what + _recorded(runs), [f"dcpg resume {_quoted(record.path)}{_code_of(record)}" for record in runs])


def _holes(comparison: Comparison) -> Missing:
    """Runs of the grid of methods, games and seeds that the other runs span."""
    cells = [(game, seed) for game in _procgen(comparison) for seed in _seeds(comparison)]
    commands, more = _grid(comparison, cells)
    total = len(comparison.labels) * len(comparison.games) * len(_seeds(comparison))
    what = f"{len(commands) + more} of {counted(total, 'run')} of the grid that the others span"
    return Missing(what + _recorded(comparison.records), commands, more)


def _rest_of_the_paper(comparison: Comparison) -> Missing | None:
    """The paper's games and seeds that no run has."""
    have, seeds = _procgen(comparison), _seeds(comparison)
    more = sorted({*seeds, *range(paper.SEEDS)})
    if not have or (len(have) == len(GAMES) and more == seeds):
        return None
    cells = [(game, seed) for game in GAMES for seed in more if game not in have or seed not in seeds]
    what = f"The paper's {len(GAMES)} games and {paper.SEEDS} seeds; these runs have {len(have)} and {len(seeds)}"
    return Missing(what + _recorded(comparison.records), *_grid(comparison, cells))


def _grid(comparison: Comparison, cells: list[tuple[str, int]]) -> tuple[list[str], int]:
    """The commands for runs of these games and seeds that are not there, for every method and established variant.

    The second number is how many more there are.
    """
    span = len(comparison.games) * len(_seeds(comparison))
    absent = []
    for label in comparison.labels:
        runs = [record for record in (*comparison.records, *comparison.waiting) if record.label == label]
        if 2 * len(runs) < span and label not in METHODS:
            continue  # a first try of a variant, not a part of the grid
        if isinstance(runs[0].config, Recorded) or setting_today(runs[0].config) != comparison.setting:
            continue  # from a plugin, or the preset has changed since: a new run would not be comparable
        have = {(record.game, record.config.seed) for record in runs}
        absent += [(label, runs[0], *cell) for cell in cells if cell not in have]
    commands = [
        train_command(
            dataclasses.replace(run.config, game=game, seed=seed),
            None if label == run.config.method else Path("runs") / f"{game}-{_slug(label)}-{seed}",
            plugins=[{"plugin": name} for name in _placeholders(run)],
        )
        for label, run, game, seed in absent[:MOST_COMMANDS]
    ]
    return commands, len(absent) - len(commands)


def _slug(label: str) -> str:
    """A variant as part of a directory's name, so that it does not take that of its method."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", label).strip("-")


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
    first = [_first(comparison, label, game) for label in comparison.labels for game in _procgen(comparison)]
    runs = [r for r in first if r is not None and "levels" not in r.analyses]
    what = f"The return on every single level (the map shows the levels of evaluations until then){_recorded(runs)}"
    return Missing(what, [f"dcpg analyse levels {_quoted(r.path)}{_code_of(r)}" for r in runs])


def _videos(comparison: Comparison) -> Missing:
    chosen = []
    for game in _procgen(comparison):
        runs = [r for label in comparison.labels if (r := _first(comparison, label, game)) is not None]
        if runs and not any((r.path / "replay.mp4").is_file() for r in runs):
            chosen.append(max(runs, key=lambda r: r.evaluations[-1].splits["test"].mean))
    commands = [f"dcpg record {_quoted(best.path)}{_code_of(best)}" for best in chosen]
    return Missing(f"A video on unseen levels{_recorded(chosen)}", commands)


def _stiffness(comparison: Comparison, measured: StiffnessRuns) -> Missing | None:
    """Figures 2 and 7 for the games of the comparison, in the setting of the measured runs if there are any."""
    have = {(r.label, r.game, r.setting.level_count) for r in measured.records}
    template = (measured.records or comparison.records)[0]
    commands = []
    try:
        for game in _procgen(comparison):
            for m in ("ppg", "dcpg"):
                config = other_method(template, m, game, 0)
                if comparison.like_paper and not measured.records:
                    config = dataclasses.replace(config, steps=PAPERS_STIFFNESS_STEPS)
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
    if template.usual_precision:  # the other one would be a variant
        settings[PRECISION] = template.usual_precision
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


# -- code of a run: its config.json may be anybody's and name any file, so that no command names one from there


def _code_of(record: Record) -> str:
    """The options for a run's plugins and its own environment, with places for the user to fill in."""
    words = [word for name in _placeholders(record) for word in ("--plugin", name)]
    own = record.written.environment
    if own is not None and own.kind != "gymnasium":
        words += ["--env", "FILE.py:make", *(["--test-env", "FILE.py:make_test"] if own.test_id is not None else [])]
    return f" {shlex.join(words)}" if words else ""


def _placeholders(record: Record) -> list[str]:
    """A place for each file with plugins."""
    count = len({one["plugin"] for one in record.written.plugins})
    return [f"FILE{number if number > 1 else ''}.py" for number in range(1, count + 1)]


def _recorded(records: Iterable[Record]) -> str:
    """Where the runs say that their code came from, as the end of a sentence; empty if all of it is dcpg's."""
    found = dict[str, None]()
    for record in records:
        found |= {f"{one['kind']} {one['name']} of {one['plugin']}": None for one in record.written.plugins}
        own = record.written.environment
        if own is not None and own.kind != "gymnasium":
            tests = f" and {own.test_id}" if own.test_id is not None else ""
            found |= {f"environment {own.name} of {own.id}{tests}": None}
    shown = list(map(printable, found))[:MOST_SOURCES]
    if not shown:
        return ""
    rest = f", and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return f". FILE.py stands for code that you trust; the runs recorded: {', '.join(shown)}{rest}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
