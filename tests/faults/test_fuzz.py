"""Fault 36: runs and sweeps that were changed at random. Every command works or refuses them in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.faults import driver, fuzz
from tests.faults.conftest import stop_twice
from tests.faults.driver import Driver, names, newest
from tests.faults.fuzz import Field, Mutation, cases, of_config, of_json, of_kind, of_rows, of_tensors

pytestmark = pytest.mark.faults

STATES = ["--states", "64", "--burn-in", "0"]
EVAL, RESUME, REPORT = ["eval", "RUN"], ["resume", "RUN"], ["report", "RUN", "--out", "OUT"]
PLAY = [
    EVAL,
    ["record", "RUN", "--levels", "0"],
    ["export", "RUN", "--out", "OUT"],
    ["analyse", "stiffness", "RUN", *STATES],
]
SHOW = [REPORT, ["analyse", "values", "RUN"], ["analyse", "levels", "RUN", "--levels", "1", "--episodes", "1"]]
READERS = [*PLAY, *SHOW]


@pytest.fixture(scope="module")
def run(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in its second auxiliary phase, with milestones, curves, an analysis and a video."""
    out = stop_twice(runs, tmp_path_factory.mktemp("fuzzed") / "run", ("keep_every=128", "machine.threads=1"))
    for words in (SHOW[1], SHOW[2], PLAY[3], PLAY[1], ["eval", "RUN", "--at", "128"]):
        ended = runs.run([word.replace("RUN", str(out)) for word in words], "bounded")
        assert ended.code == 0, str(ended)
    (out / "curves.png").write_bytes(b"a picture")
    shutil.rmtree(out / "tb")
    (out / "tb").mkdir()
    return out


@pytest.fixture
def field(runs: Driver, run: Path, tmp_path: Path) -> Field:
    return Field(runs, tmp_path, run)


def mostly(*readers: list[str], count: int = 2) -> st.SearchStrategy[list[list[str]]]:
    """Some of the commands that only read, then a resume."""
    some = st.lists(st.sampled_from(readers or READERS), min_size=count, max_size=count, unique_by=tuple)
    return some.map(lambda found: [*found, RESUME])


def test_the_field_sees(runs: Driver, run: Path, tmp_path: Path) -> None:
    """Without mutations every command works; a traceback, a kill and a changed file outside are seen."""
    field = Field(runs, tmp_path, run)
    field.try_case([], [*READERS, ["eval", "RUN", "--at", "128"], RESUME])
    assert [str(one) for one in field.found] == []
    ended = driver.Ended
    assert [fuzz.wrong_with(ended(*end)) for end in ((0, "", "", 0), (2, "", "dcpg: No.\n", 0))] == ["", ""]
    bad = ((1, "", "", 0), (-9, "", "", 0), (2, "", "", 0), (0, "", "", 2**22), (0, "\x1b[2J", "", 0), (-11, "", "", 0))
    assert all(fuzz.wrong_with(ended(*end)) for end in bad)
    assert fuzz.wrong_with(ended(2, "", "Traceback (most recent call last):\n", 0)) == "traceback"
    field.try_case([], [["export", "RUN", "--out", "OUTSIDE/x"]])
    assert [one.wrong for one in field.found] == ["changed something outside of the run"]


def test_configurations(field: Field, run: Path) -> None:
    case = cases(of_config(run, sealed=True), of_config(run, sealed=False))
    field.explore("36 configurations changed at random", 28, case, mostly())


def test_manifests(field: Field, run: Path) -> None:
    field.explore("36 manifests changed at random", 20, cases(fuzz.of_manifest(run)), mostly(*PLAY, count=1))


def test_states(field: Field, run: Path) -> None:
    case = cases(fuzz.of_state(run), fuzz.of_state(run), fuzz.of_memory(run))
    field.explore("36 states changed at random", 28, case, mostly(*PLAY, count=1))


def test_tensors(field: Field, run: Path) -> None:
    inside = f"checkpoints/{newest(run).name}"
    shared = sorted(p.name for p in (run / "checkpoints" / "shared").glob("*.safetensors"))
    files = [
        f"{inside}/weights.safetensors",
        f"{inside}/adam.safetensors",
        *(f"checkpoints/shared/{s}" for s in shared),
    ]
    case = cases(*(of_tensors(run, file) for file in files))
    field.explore("36 tensors changed at random", 24, case, mostly(*PLAY, count=1))


def test_milestones(field: Field, run: Path) -> None:
    stem = f"milestones/{128:012d}"
    case = cases(of_tensors(run, f"{stem}.safetensors"), of_json(run, f"{stem}.json"))
    at = [["eval", "RUN", "--at", "128"], ["export", "RUN", "--out", "OUT", "--at", "128"]]
    field.explore("36 milestones changed at random", 12, case, st.sampled_from(at).map(lambda words: [words]))


def test_rows(field: Field, run: Path) -> None:
    files = ("metrics.jsonl", "eval.jsonl", "timing.jsonl")
    small = ("summary.json", *(f"analysis/{name}.json" for name in ("values", "levels", "stiffness")))
    case = cases(*(of_rows(run, file) for file in files), *(of_json(run, file) for file in small))
    field.explore("36 rows changed at random", 28, case, mostly(*SHOW, PLAY[2], count=1))


def test_kinds_of_files(field: Field, run: Path) -> None:
    """Links, pipes, devices, folders, endless and huge files in place of those of a run, or where it writes."""
    first = newest(run).name
    more = ["lock", "replay.mp4", ".tmp-replay.mp4", "tb/events", "export", "milestones/x", ".tmp-curves.png",
            ".tmp-summary.json", ".tmp-metrics.jsonl", "checkpoints/.tmp-x", f"checkpoints/damaged-{first}",
            "checkpoints/shared/somebody", "analysis/.tmp-values.json", "tb", "lock", "curves.png"]  # fmt: skip
    field.explore("36 something else in place of a file", 44, cases(of_kind(run, more)), mostly())


@pytest.fixture(scope="module")
def exported(runs: Driver, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "agent"
    ended = runs.run(["export", str(run), "--out", str(out)], "bounded")
    assert ended.code == 0, str(ended)
    return out


def test_exports(runs: Driver, exported: Path, tmp_path: Path) -> None:
    field = Field(runs, tmp_path, exported)
    case = st.lists(
        st.one_of(of_config_of_export(exported), of_tensors(exported, "model.safetensors"), of_kind(exported)),
        min_size=1,
        max_size=2,
    )
    field.explore("36 exports changed at random", 16, case, st.sampled_from(PLAY[:3]).map(lambda words: [words]))


def of_config_of_export(exported: Path) -> st.SearchStrategy[Mutation]:
    return of_json(exported, "config.json")


@pytest.fixture(scope="module")
def swept(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one small run, and its file inside it."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "one.toml").write_text(toml(SWEEP))
    ended = runs.run(["sweep", str(folder / "one.toml"), "--out", str(folder / "run")])
    assert ended.code == 0, str(ended)
    (made,) = (folder / "run" / "runs").iterdir()
    shutil.rmtree(made / "tb")
    return folder / "run"


SWEEP: dict[str, Any] = {
    "methods": ["ppo"], "games": ["starpilot"], "seeds": [0], "steps": 128, "preset": "tiny", "levels": [10],
    "analyse_after": ["values"], "grid": {"algorithm": {"gamma": [0.99]}}, "variants": {"plain": {}},
    "set": {"evaluation": {"max_steps": 12, "episodes": 2}, "env": {"frame_size": 16}, "network": {"channels": [2, 4]}},
}  # fmt: skip


def toml(value: Any, top: bool = True) -> str:
    """TOML by hand: inline tables inside one line for each key."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(str(k))} = {toml(v, False)}" for k, v in value.items()]
        return "\n".join(pairs) + "\n" if top else "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one, False) for one in value) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan too
    return json.dumps(value) if value is not None else '""'


def test_sweeps(runs: Driver, swept: Path, tmp_path: Path) -> None:
    """sweep.json, its rows and kinds of files."""
    field = Field(runs, tmp_path, swept)
    (only,) = (swept / "runs").iterdir()
    run = f"runs/{only.name}"
    case = st.lists(
        st.one_of(
            of_json(swept, "sweep.json"),
            of_rows(swept, "index.jsonl"),
            of_json(swept, f"{run}/config.json"),
            of_json(swept, f"{run}/summary.json"),
            of_rows(swept, f"{run}/eval.jsonl"),
            of_kind(swept, ["runs", "logs", "lock", "nodes", f"{run}/lock"]),
        ),
        min_size=1,
        max_size=2,
    )
    status = [["sweep", "status", "RUN"], ["sweep", "status", "RUN", "--json"]]
    commands = st.sampled_from([[*status], [status[1], REPORT]])
    field.explore("36 sweeps changed at random", 24, case, commands)


def test_files_of_sweeps(runs: Driver, swept: Path, tmp_path: Path) -> None:
    """A sweep's TOML: a plan that could be carried out, or a sentence."""
    field = Field(runs, tmp_path, swept)
    case = fuzz.changes(SWEEP).map(
        lambda made: [Mutation(f"TOML {fuzz.short(made)}", write(toml(fuzz.changed(SWEEP, made))))]
    )
    text = st.sampled_from(
        ("a", "a = ", "a = [" * 50_000, "[[a", "a = 1\na = 2", "\0", "seeds = 9999999999999999999999", "=")
    )
    odd = text.map(lambda words: [Mutation(f"TOML {words[:20]!r}", write(words))])
    dry = ["sweep", "RUN/file.toml", "--out", "OUT", "--dry-run"]
    field.explore("36 sweep files changed at random", 40, st.one_of(case, case, case, odd), st.just([dry]))


def write(text: str) -> Callable[[Path], None]:
    for mark, raw in fuzz.RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return lambda out: void((out / "file.toml").write_bytes(text.encode("utf-8", "surrogatepass")))


def void(_: object) -> None: ...


def test_names_of_checkpoints(field: Field, run: Path) -> None:
    """A stranger's checkpoint may have any name that sorts last."""
    last = names(run)[-1]
    odd = (
        "9" * 12,
        "999999999999-",
        "999999999999-99.999.999999-99999",
        "999999999999..",
        "000000000512-0-0-0",
        "9" * 200,
    )

    def renamed(name: str) -> list[Mutation]:
        return [Mutation(name, lambda out: void((out / "checkpoints" / last).rename(out / "checkpoints" / name)))]

    field.explore("36 checkpoints of odd names", len(odd), st.sampled_from(odd).map(renamed), mostly(*PLAY, count=1))
