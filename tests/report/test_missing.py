"""What is missing, and the commands that would make it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dcpg.cli.options import parse_settings
from dcpg.config.command import train_command
from dcpg.config.presets import PRESETS
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.report.comparison import StiffnessRuns, compare
from dcpg.report.likeness import differences
from dcpg.report.missing import missing
from dcpg.runs.collection import read
from dcpg.runs.comparable import setting_today
from tests.report.grid import COUNTS, GAMES, STIFF_GAMES, Built
from tests.synthetic import LAPTOP_NOW, TINY_SIZES, configured, edit, of_schema_5, some


def parsed(line: str) -> Config:
    """The configuration that a `dcpg train` command means."""
    program, verb, method, *rest = shlex.split(line)
    assert (program, verb) == ("dcpg", "train")
    options: dict[str, str] = {}
    pairs = []
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        if name == "--set":
            pairs.append(value)
        else:
            assert name in ("--game", "--preset", "--steps", "--seed", "--out")
            assert name not in options
            options[name] = value
    steps = int(options["--steps"]) if "--steps" in options else None
    return resolve(
        method, options["--game"], preset=options["--preset"], steps=steps, seed=int(options["--seed"]),
        settings=parse_settings(pairs),
    )  # fmt: skip


SETTINGS: dict[str, dict[str, Any]] = {
    "other levels": {"settings": {"levels.seeds": "3,5,9", "evaluation.episodes": 5}},
    "all levels": {"settings": {"levels.count": 0}},
    # less than one rollout of the preset it is named after
    "own sizes": {"preset": "paper", "settings": TINY_SIZES},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_commands_for_missing_runs_lead_to_the_same_setting(name: str, tmp_path: Path) -> None:
    more = SETTINGS[name]
    for method, game, seed in (
        ("dcpg", "maze", 0),
        ("dcpg", "maze", 1),
        ("dcpg", "bigfish", 0),
        ("dcpg+fi", "maze", 1),
    ):
        some(tmp_path / f"{game} {method} {seed}", method, game, seed, **more)
    variant = {**more, "settings": {**more.get("settings", {}), "algorithm.gamma": 0.99}}
    for seed in (0, 1):
        some(tmp_path / f"variant {seed}", "dcpg", "bigfish", seed, **variant)
    once = {**more, "settings": {**more.get("settings", {}), "algorithm.gamma": 0.9}}
    some(tmp_path / "tried once", "dcpg", "bigfish", 0, **once)
    edit("eval.jsonl", lambda rows: rows.pop() and None)(tmp_path / "maze dcpg 1")
    records, problems = read([tmp_path])
    comparison = compare(records, problems)
    assert problems == []
    found = {entry.what: entry.commands for entry in missing(comparison, StiffnessRuns(records))}
    commands = [line for lines in found.values() for line in lines]
    trainings = [line for line in commands if line.startswith("dcpg train ")]
    holes = [line for what, lines in found.items() if "runs of the grid" in what for line in lines]
    assert set(comparison.labels) == {"dcpg", "dcpg [gamma=0.9]", "dcpg [gamma=0.99]", "dcpg+fi"}
    asked_for = [(c.method, c.algorithm.gamma, c.game, c.seed) for c in map(parsed, holes)]
    assert sorted(asked_for) == [  # a variant that was tried once is no part of the grid
        ("dcpg", 0.99, "maze", 0), ("dcpg", 0.99, "maze", 1), ("dcpg", 0.999, "bigfish", 1),
        ("dcpg+fi", 0.999, "bigfish", 0), ("dcpg+fi", 0.999, "bigfish", 1), ("dcpg+fi", 0.999, "maze", 0),
    ]  # fmt: skip
    configs = [parsed(line) for line in trainings if "analyse=stiffness" not in line]
    assert all(setting_today(config) == comparison.setting for config in configs)
    asked = {config.method for config in configs}
    everyone = {"ppo", "ucb-drac", "plr", "daac", "ppg", "ddcpg", "dcpg+f", "dcpg+i", "separate-dcpg", "dppg"}
    # prioritised levels need a finite set of them
    assert asked - {"dcpg", "dcpg+fi"} == everyone - ({"plr"} if name == "all levels" else set())
    stiff = [line for line in trainings if "analyse=stiffness" in line]
    assert len(stiff) == 2 * 2 * len(COUNTS)
    counted = set()
    for line in stiff:
        config = parsed(line)
        assert setting_today(config).rest == comparison.setting.rest
        assert setting_today(config).steps == comparison.setting.steps
        assert config.analyse == ("stiffness",)
        counted.add((config.method, config.game, setting_today(config).level_count))
    assert len(counted) == len(stiff)
    others = [shlex.split(line) for line in commands if not line.startswith("dcpg train ")]
    assert all((Path(words[-1]) / "config.json").is_file() for words in others)
    assert {tuple(words[1:-1]) for words in others} == {("resume",), ("analyse", "levels"), ("record",)}
    assert [words[-1] for words in others if words[1] == "resume"] == [str(tmp_path / "maze dcpg 1")]


def test_commands_for_other_methods_have_the_precision_that_is_no_variant(tmp_path: Path) -> None:
    for number, precision in enumerate(("bf16", "fp32")):
        some(tmp_path / "runs" / str(number), "dcpg", settings={"machine.precision": precision})
    comparison = compare(*read([tmp_path / "runs"]))
    (ppo,) = [one for one in missing(comparison, StiffnessRuns([])) if one.what.startswith("PPO runs")]
    assert [parsed(line).machine.precision for line in ppo.commands] == ["auto"]  # which is fp32 with this preset
    assert not any(one.name == "machine.precision" for one in differences(comparison.records))  # the names have it


def test_of_very_many_commands_the_first_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        some(tmp_path / f"{seed}", "dcpg", "bigfish", seed)
    records, _ = read([tmp_path])
    found = []
    for most in (2000, 10):
        monkeypatch.setattr("dcpg.report.missing.MOST_COMMANDS", most)
        entries = missing(compare(records, []), StiffnessRuns(records))
        found.append(next(entry for entry in entries if "16 games and 10 seeds" in entry.what))
    whole, cut = found
    assert (len(whole.commands), whole.more) == (16 * 10 - 2, 0)
    assert (cut.commands, cut.more) == (whole.commands[:10], 148)


def test_stiffness_is_asked_for_in_the_setting_that_was_measured(grid: Built) -> None:
    (entry,) = [entry for entry in grid.missing if "Figures 2 and 7" in entry.what]
    games = [game for game in GAMES if game not in STIFF_GAMES]
    assert len(entry.commands) == 2 * len(games) * len(COUNTS) - 3
    for line in (entry.commands[0], entry.commands[-1]):
        config = parsed(line)
        assert (config.steps, config.game in games) == (8_000_000, True)
        assert setting_today(config).rest == setting_today(resolve("ppg", "maze")).rest


def test_table_10_is_asked_for_where_it_was_not_measured(tmp_path: Path) -> None:
    run = some(tmp_path / "a run", "ddcpg")
    found, problems = read([tmp_path])
    comparison = compare(found, problems)
    entries = {entry.what: entry.commands for entry in missing(comparison, StiffnessRuns(found))}
    commands = entries["Table 10: wrong actions that discriminators believe"]
    assert commands == [f"dcpg analyse ood-actions {shlex.quote(str(run.path))}"]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    method=st.sampled_from(list(METHODS)),
    game=st.sampled_from(GAMES),
    preset=st.sampled_from(["paper", "laptop", "tiny"]),
    steps=st.none() | st.integers(20_000, 30_000_000),
    seed=st.integers(0, 2**31),
    more=st.fixed_dictionaries(
        {},
        optional={
            "algorithm.gamma": st.floats(0.5, 1.0),
            "algorithm.learning_rate": st.floats(1e-9, 1.0),
            "algorithm.N_pi": st.sampled_from([4, 8, 16]),
            "augment": st.sampled_from(["ucb", "crop", "none"]),
            "levels.start": st.integers(0, 10_000),
            "levels.count": st.integers(1, 500),
            "levels.seeds": st.lists(st.integers(0, 2**31 - 2), max_size=5, unique=True).map(tuple),
            "network.channels": st.lists(st.integers(1, 64), min_size=1, max_size=4).map(tuple),
            "evaluation.episodes": st.integers(1, 200),
            "machine.compile": st.booleans(),
            "machine.threads": st.integers(1, 8),
            "analyse": st.sampled_from([(), ("stiffness",), ("stiffness", "values")]),
            "checkpoints.minutes": st.floats(0.1, 1e6),
        },
    ),
)
def test_a_command_means_the_configuration_it_was_made_from(
    method: str, game: str, preset: str, steps: int | None, seed: int, more: dict[str, Any]
) -> None:
    try:
        config = resolve(method, game, preset=preset, steps=steps, seed=seed, settings=more)
    except BadInput:
        assume(False)
    assert parsed(train_command(config)) == config
    assert parsed(train_command(config, Path("a folder/with 'quotes'"))) == config


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_command_is_short_and_means_it(method: str) -> None:
    config = resolve(method, "miner", seed=7)
    assert train_command(config) == f"dcpg train {method} --game miner --preset paper --seed 7"
    assert parsed(train_command(config)) == config


def test_no_command_is_given_for_runs_that_could_not_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_schema_5(tmp_path / "one")
    edit("eval.jsonl", lambda rows: rows.pop() and None)(of_schema_5(tmp_path / "two", game="maze", seed=1))

    def trainings() -> tuple[int, int]:
        records, problems = read([tmp_path])
        assert problems == []
        commands = [c for entry in missing(compare(records, []), StiffnessRuns(records)) for c in entry.commands]
        return sum(c.startswith("dcpg train") for c in commands), sum(c.startswith("dcpg resume") for c in commands)

    some_trainings, resumed = trainings()
    assert some_trainings > 2
    assert resumed == 1
    monkeypatch.setitem(PRESETS, "laptop", LAPTOP_NOW)
    assert trainings() == (0, 1)


def test_commands_name_no_code_that_a_config_json_names(tmp_path: Path) -> None:
    """Neither for a method that is unknown here nor for one of dcpg; the sources stand in the description."""
    evil = str(tmp_path / "runs" / "evil.py")
    spaces = {"shape": [4], "dtype": "float32", "actions": 2, "frame": [4], "first_action": 0, "stack": 1}
    own = {"name": "e", "id": f"{evil}:make", "test_id": f"{evil}:test", "kind": "code", "spaces": spaces}
    plugins = [{"kind": "method", "name": "m", "plugin": evil, "sha256": ""}]
    plugins.append({"kind": "encoder", "name": "x", "plugin": f"{evil}2", "sha256": ""})
    for seed in (0, 1):
        some(tmp_path / "runs" / f"known{seed}", "ppo", "bigfish", seed)
        configured(lambda plain: plain.update(plugins=plugins))(tmp_path / "runs" / f"known{seed}")
    unfinished = some(tmp_path / "runs" / "unknown", "dcpg").path
    edit("eval.jsonl", lambda rows: rows.pop() and None)(unfinished)
    usual = {"algorithm.gamma": 0.9}
    configured(
        lambda plain: plain.update(method="m", game="own:e", environment=own, plugins=plugins, method_values=usual)
    )(unfinished)
    records, problems = read([tmp_path])
    found = missing(compare(records, problems), StiffnessRuns(records))
    commands = [command for entry in found for command in entry.commands]
    assert not [command for command in commands if "evil" in command]
    for verb in ("dcpg train ppo", "dcpg resume", "dcpg analyse levels", "dcpg record"):
        chosen = [command for command in commands if command.startswith(verb) and "stiffness" not in command]
        assert chosen
        assert all("--plugin FILE.py --plugin FILE2.py" in command for command in chosen)
    (resume,) = [command for command in commands if command.startswith("dcpg resume")]
    assert resume.endswith(" --env FILE.py:make --test-env FILE.py:make_test")
    (entry,) = [entry for entry in found if resume in entry.commands]
    for source in (f"method m of {evil}", f"encoder x of {evil}2", f"environment e of {evil}:make and {evil}:test"):
        assert source in entry.what
