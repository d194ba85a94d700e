"""Sweeps: plans, names, where runs stand, the index, and the driver with an engine that lives in memory."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dcpg.cli.sweep_display import LiveTable, PlainTable, picture
from dcpg.config.resolve import available_cores
from dcpg.config.schema import SCHEMA
from dcpg.errors import BadInput, Stopped, SweepIncomplete
from dcpg.machine.needs import free_memory
from dcpg.runs.status import Standing, last_rows, look, runs_now
from dcpg.storage.files import dump
from dcpg.storage.lock import Lock
from dcpg.sweep import driver as drive
from dcpg.sweep import dry_run as cost
from dcpg.sweep import local
from dcpg.sweep.attempt import Order, Outcome, attempt, last_lines
from dcpg.sweep.directory import Layout
from dcpg.sweep.driver import Driver
from dcpg.sweep.index import BEGUN, Index
from dcpg.sweep.local import LocalEngine, capacity, needs_of
from dcpg.sweep.plan import Job, Plan, expand, named, read
from dcpg.sweep.view import View, from_directory, steps_of
from tests.cli.test_cli import run as command

TINY = {"methods": ["ppo", "dcpg"], "games": "starpilot", "seeds": 2, "preset": "tiny", "steps": 512}
NAMES = ["starpilot-ppo-0", "starpilot-dcpg-0", "starpilot-ppo-1", "starpilot-dcpg-1"]


def planned(**changes: Any) -> Plan:
    return expand("small", {**TINY, **changes}, "small.toml")


def place(steps: int, minibatch: int = 0) -> str:
    return f"{steps:012d}-00.000.{minibatch:06d}-00001"


def write_run(root: Path, job: Job, at: str, finished: bool = False, **changes: Any) -> Path:
    """What a run leaves that has come as far as a checkpoint."""
    out = Layout(root).run(job.name)
    (out / "checkpoints" / at).mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_bytes(dump({"schema": SCHEMA, **job.config.to_json(), **changes}))
    steps = steps_of(job) if finished else int(at[:12])
    status = "finished" if finished else "stopped"
    (out / "summary.json").write_bytes(dump({"status": status, "steps": steps}))
    row = {"steps": steps, "train_return": 3.0, "test_return": 2.0 + job.config.seed, "test_returns": [0.5] * 5000}
    (out / "eval.jsonl").write_bytes(dump({"steps": 128, "test_return": 9.0}) + dump(row))
    (out / "timing.jsonl").write_bytes(dump({"steps": steps, "steps_per_s": 40.0}))
    return out


# -- plans


def test_the_sweeps_that_come_with_the_package() -> None:
    assert list(named()) == ["ablations", "laptop", "regularisation", "stiffness", "table1"]
    plans, sizes = {name: read(name) for name in named()}, {}
    for name, plan in plans.items():
        sizes[name] = (len(plan.jobs), {job.config.steps for job in plan.jobs})
        assert {job.config.machine.threads for job in plan.jobs} == {1}
        assert len({job.config.fingerprint() for job in plan.jobs}) == len(plan.jobs)
    assert sizes == {
        "table1": (1120, {25_000_000}), "ablations": (960, {25_000_000}), "regularisation": (960, {25_000_000}),
        "stiffness": (256, {8_000_000}), "laptop": (8, {65_536}),
    }  # fmt: skip
    methods = [{job.config.method for job in plans[name].jobs} for name in ("table1", "ablations", "regularisation")]
    assert [len(m) for m in methods] == [7, 6, 2]
    assert len(set.union(*methods)) == 15
    assert {job.config.algorithm.eta for job in plans["ablations"].jobs if job.config.method == "dcpg+fi"} == {1.0}
    gammas = {job.config.algorithm.gamma for job in plans["regularisation"].jobs if job.config.method == "ppg+dr"}
    alphas = {job.config.algorithm.alpha for job in plans["regularisation"].jobs if job.config.method == "ppg+ar"}
    assert (gammas, alphas) == ({0.98, 0.99, 0.995}, {0.01, 0.05, 0.1})
    stiffness = plans["stiffness"].jobs
    assert {job.config.levels.count for job in stiffness} == {1, 2, 5, 10, 20, 50, 100, 200}
    assert {job.config.analyse for job in stiffness} == {("stiffness",)}
    assert {job.config.preset for job in plans["laptop"].jobs} == {"laptop"}


def test_a_plan_and_its_names(tmp_path: Path) -> None:
    file = tmp_path / "My sweep.toml"
    file.write_text(
        """
        methods = ["ppg+dr", "ppo"]
        games = ["maze", "coinrun"]
        seeds = [3, 7]
        levels = [1, 50]
        preset = "tiny"
        [set]
        evaluation.max_steps = 12
        network.channels = [2, 4]
        algorithm.entropy = 0.02
        [set.ppo]
        algorithm.entropy = 0.03
        [grid."ppg+dr"]
        algorithm.gamma = [0.98, 1]
        algorithm.N_pi = [1, 2]
        [grid]
        levels.start = [0, 5]
        """
    )
    plan = read(str(file))
    names = [job.name for job in plan.jobs]
    assert plan.name == "my-sweep"
    assert len(names) == len(set(names)) == 2 * 2 * 2 * (2 * 4 + 2)
    assert names[0] == "maze-ppg+dr-levels=1-start=0-gamma=0.98-n_pi=1-3"
    assert "coinrun-ppo-levels=50-start=5-7" in names
    job = plan.jobs[names.index("coinrun-ppg+dr-levels=50-start=5-gamma=1.0-n_pi=2-7")]
    c = job.config
    assert (c.method, c.game, c.seed, c.steps, c.preset) == ("ppg+dr", "coinrun", 7, 2048, "tiny")
    assert (c.levels.count, c.levels.start, c.algorithm.gamma, c.algorithm.N_pi) == (50, 5, 1.0, 2)
    assert (c.evaluation.max_steps, c.network.channels, c.machine.threads) == (12, (2, 4), 1)
    assert {j.config.algorithm.entropy for j in plan.jobs if j.config.method == "ppo"} == {0.03}
    assert {j.config.algorithm.entropy for j in plan.jobs if j.config.method != "ppo"} == {0.02}
    assert job.label == "ppg+dr-levels=50-start=5-gamma=1.0-n_pi=2"


def test_scalars_and_defaults() -> None:
    plan = expand("one", {"methods": "dcpg", "games": "maze", "levels": 10}, "one.toml")
    (job,) = plan.jobs
    assert job.name == "maze-dcpg-0"
    assert (job.config.steps, job.config.preset, job.config.levels.count) == (25_000_000, "paper", 10)
    assert job.config.machine.threads == 1  # though a run of its own would take every core
    games = expand("all", {"methods": "ppo", "games": "all", "set": {"machine": {"threads": 3}}}, "all.toml").jobs
    assert len(games) == 16
    assert {job.config.machine.threads for job in games} == {3}
    threads = planned(grid={"machine": {"threads": [1, 2]}}).jobs
    assert [job.name for job in threads[:2]] == ["starpilot-ppo-threads=1-0", "starpilot-ppo-threads=2-0"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "Unknown key of a sweep 'seed'; did you mean 'seeds'?"),
        ({"methods": "dcgp"}, "Unknown method 'dcgp'; did you mean 'dcpg'?"),
        ({"methods": []}, "methods is empty."),
        ({"methods": ["ppo", "ppo"]}, "methods names 'ppo' twice."),
        ({"methods": 3}, "methods must be names; got 3."),
        ({"methods": "own:thing"}, "Unknown method"),
        ({"games": "starpilto"}, "Unknown game 'starpilto'; did you mean 'starpilot'?"),
        ({"games": "own:thing"}, "Unknown game"),
        ({"games": "../../etc"}, "Unknown game"),
        ({"seeds": []}, "seeds is empty."),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [1, 1]}, "seeds names 1 twice."),
        ({"seeds": [-1]}, "seeds must be whole numbers, 0 or more; got -1."),
        ({"seeds": True}, "seeds must be whole numbers, 0 or more; got True."),
        ({"seeds": "3"}, "seeds must be whole numbers, 0 or more; got '3'."),
        ({"seeds": 10**12}, "a sweep has at most 100,000 runs"),
        ({"games": "all", "seeds": 90_000}, "this sweep has 2,880,000 runs; the most is 100,000."),
        ({"steps": 1.5}, "steps must be whole numbers, 0 or more; got 1.5."),
        ({"steps": [512, 1024]}, "steps must be one number; for several, write them as steps under [grid]"),
        ({"steps": 1}, "steps=1 is less than one rollout"),
        ({"preset": "papr"}, "Unknown preset 'papr'; did you mean 'paper'?"),
        ({"preset": ["paper"]}, "Unknown preset"),
        ({"levels": [0.5]}, "levels must be whole numbers, 0 or more; got 0.5."),
        ({"levels": [1, 1]}, "levels names 1 twice."),
        ({"set": 3}, "[set] must be a table; got 3."),
        ({"set": {"algorithm": {"gama": 1}}}, "Unknown setting 'algorithm.gama'; did you mean 'algorithm.gamma'?"),
        ({"set": {"algorithm": {}}}, "Unknown setting 'algorithm'"),
        ({"set": {"algorithm": {"gamma": "x"}}}, "algorithm.gamma must be a number; got 'x'."),
        ({"set": {"algorithm": {"gamma": float("nan")}}}, "algorithm.gamma must be a finite number"),
        ({"set": {"algorithm": {"N_pi": 4}}}, "ppo has no setting algorithm.N_pi; put it under"),
        ({"set": {"levels": {"rho": 0.5}}}, "levels.rho has no effect while levels.sampler=uniform; add to [set]"),
        ({"set": {"seed": 1}}, "seed stands at the top of a sweep, as seeds."),
        ({"grid": {"method": ["ppo"]}}, "method stands at the top of a sweep, as methods."),
        ({"set": {"ppg": {"algorithm": {"gamma": 1}}}}, '[set."ppg"] is of a method that this sweep does not train.'),
        ({"set": {"dcpg": {}}}, '[set."dcpg"] must be a table of settings; got {}.'),
        ({"set": {"steps": 512}}, "steps is given at the top and steps in [set] or [grid]; choose one."),
        ({"levels": 3, "set": {"levels": {"count": 3}}}, "levels is given at the top and levels.count in [set]"),
        ({"grid": {"algorithm": {"gamma": 0.9}}}, "[grid] algorithm.gamma must be a list of values; got 0.9."),
        ({"grid": {"algorithm": {"gamma": []}}}, "[grid] algorithm.gamma must be a list of values; got []."),
        ({"grid": {"algorithm": {"gamma": [1, 1.0]}}}, "two of its runs would both be starpilot-ppo-gamma=1.0-0"),
        (
            {"set": {"algorithm": {"gamma": 1}}, "grid": {"dcpg": {"algorithm": {"gamma": [1]}}}},
            "algorithm.gamma is both in [set] and in [grid]; choose one.",
        ),
        ({"set": {"machine": {"threads": 0}}}, "machine.threads=0 means all cores of whatever machine it is"),
        ({"grid": {"machine": {"threads": [1, 0]}}}, "machine.threads=0 means all cores of whatever machine it is"),
    ],
)
def test_plans_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        planned(**changes)
    assert str(error.value).startswith("small.toml: ")
    assert said in str(error.value)


def test_settings_of_the_command_come_over_the_files(tmp_path: Path) -> None:
    file = 'methods = "ppo"\ngames = "maze"\n[set]\nmachine.threads = 1\nalgorithm.E_pi = 2\n'
    (tmp_path / "own.toml").write_text(file)
    plan = read(str(tmp_path / "own.toml"), {"machine.threads": "3", "env.num_envs": "32"})
    (job,) = plan.jobs
    assert (job.config.machine.threads, job.config.env.num_envs, job.config.algorithm.E_pi) == (3, 32, 2)
    again = expand(plan.name, json.loads(json.dumps(plan.source)), "sweep.json")  # as `status` reads it
    assert again.jobs == plan.jobs
    assert {job.config.steps for job in read("laptop", {"steps": "4096"}).jobs} == {4096}
    with pytest.raises(BadInput, match="steps must be whole numbers"):
        read("laptop", {"steps": "many"})
    with pytest.raises(BadInput, match="all cores of whatever machine"):
        read("laptop", {"machine.threads": "0"})


@pytest.mark.parametrize("key", ["methods", "games"])
def test_what_a_plan_needs(key: str) -> None:
    with pytest.raises(BadInput, match=f"{key} is missing"):
        expand("less", {name: value for name, value in TINY.items() if name != key}, "less.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"methods = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 100_000, "is not TOML"),
        (b"# " + b"x" * 1_000_000, "a sweep is a small file"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        read(str(tmp_path / "bad.toml"))


def test_sweeps_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="Unknown sweep 'tabel1'; did you mean 'table1'"):
        read("tabel1")
    for path in ("none.toml", "../table1", "named/table1", "/etc"):
        with pytest.raises(BadInput, match="There is no file"):
            read(path)


# -- names cannot lead anywhere


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/../b", "a/b", "/etc/passwd", "", "A", "a b", "a;rm", "$(x)", "a\n", "a..b", "-x", ".x",
             "~", "a\0", "a" * 201, "ä", "a|b", "a'b", 'a"b', "a`b", "*"],
)  # fmt: skip
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    layout = Layout(tmp_path)
    for path in (layout.run, layout.log):
        with pytest.raises(BadInput, match="cannot be the name"):
            path(name)
    with pytest.raises(BadInput):
        attempt(Order(str(tmp_path), name, {}), lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_odd_and_long_values_become_hashes(tmp_path: Path) -> None:
    many = ",".join(map(str, range(100)))
    plan = planned(
        grid={
            "machine": {"device": ["cuda:1", "../../etc;$(x)"]},
            "levels": {"seeds": [many, "1"]},
            "evaluation": {"max_steps": [12, 13]},
        }
    )
    names = [job.name for job in plan.jobs]
    assert len(set(names)) == len(names) == 32
    layout = Layout(tmp_path)
    for name in names:
        assert layout.run(name).parent == tmp_path / "runs"
        assert layout.log(name).parent == tmp_path / "logs"
        assert not set(name) & set("/;$() ")
    assert any(name.endswith("seeds=1-max_steps=13-1") for name in names)
    assert [job.name for job in planned(grid={"machine": {"device": ["cuda:1", "../../etc;$(x)"]}}).jobs] != names


# -- where a run stands


def test_standing(tmp_path: Path) -> None:
    job = planned().jobs[0]
    path = Layout(tmp_path).run(job.name)
    assert look(job, path) == Standing("waiting", 0, "", None, None, 0.0)
    path.mkdir(parents=True)
    assert look(job, path).status == "waiting"
    write_run(tmp_path, job, place(256, 3))
    write_run(tmp_path, job, place(128))
    (path / "checkpoints" / ".tmp-x").mkdir()
    (path / "checkpoints" / "shared").mkdir()
    (path / "timing.jsonl").write_text('{"steps": 384, "steps_per_s": 50.5}\n{"steps": 512, "steps_p')
    assert look(job, path) == Standing("interrupted", 384, place(256, 3), 3.0, 2.0, 50.5)
    phasic = planned().jobs[1]  # a phase is two rollouts: one fast, one with an auxiliary phase
    rows = [{"steps": 128 * (i + 1), "steps_per_s": speed} for i, speed in enumerate((7.0, 90.0, 10.0))]
    (write_run(tmp_path, phasic, place(256)) / "timing.jsonl").write_bytes(b"".join(map(dump, rows)))
    assert look(phasic, Layout(tmp_path).run(phasic.name)).steps_per_s == pytest.approx(2 / (1 / 90 + 1 / 10))
    (path / "timing.jsonl").unlink()
    assert look(job, path).steps == 256
    write_run(tmp_path, job, place(512), finished=True)
    assert look(job, path) == Standing("finished", 512, place(512), 3.0, 2.0, 40.0)


def test_a_run_is_finished_only_with_all_of_it(tmp_path: Path) -> None:
    job = planned().jobs[0]
    path = write_run(tmp_path, job, place(512), finished=True)
    kept = {name: (path / name).read_bytes() for name in ("summary.json", "eval.jsonl")}
    for name, content in [
        ("summary.json", dump({"status": "finished", "steps": 384})),
        ("summary.json", dump({"status": "running", "steps": 512})),
        ("summary.json", b'{"status": "fini'),
        ("summary.json", b"[]"),
        ("eval.jsonl", dump({"steps": 384, "test_return": 1.0})),
        ("eval.jsonl", b""),
        ("eval.jsonl", b'{"steps": 512, "test'),
    ]:
        (path / name).write_bytes(content)
        assert look(job, path).status == "interrupted", content
        (path / name).write_bytes(kept[name])
    (path / "summary.json").unlink()
    assert look(job, path).status == "interrupted"


def test_another_run_in_the_directory_is_refused(tmp_path: Path) -> None:
    job = planned().jobs[0]
    path = Layout(tmp_path).run(job.name)
    for changes, said in [
        ({"steps": 1024}, "steps=1024, the sweep 512"),
        ({"game": "maze"}, "game=maze, the sweep starpilot"),
        ({"machine": {**job.config.to_json()["machine"], "threads": 2}}, "machine.threads=2, the sweep 1"),
        ({"init": "runs/other"}, "began with the weights of another"),
    ]:
        write_run(tmp_path, job, place(128), **changes)
        with pytest.raises(BadInput) as error:
            look(job, path)
        assert said in str(error.value)
        assert job.name in str(error.value)
    write_run(tmp_path, job, place(128), nonsense=1)  # nobody's
    found = look(job, path)
    assert (found.status, "Unknown setting 'nonsense'" in found.note) == ("damaged", True)
    write_run(tmp_path, job, place(128), keep_every=256, checkpoints={"minutes": 1.0}, check_room=False)
    assert look(job, path).status == "interrupted"  # what decides no result may differ


def test_the_last_rows_of_a_long_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert last_rows(file) == []
    long = {"text": "x" * 100_000}
    file.write_bytes(dump({"a": 1}) + dump(long))
    assert last_rows(file) == [long]
    assert last_rows(file, 2) == last_rows(file, 5) == [{"a": 1}, long]
    file.write_bytes(dump({"a": 1}) + b'{"text": "' + b"x" * 100_000)
    assert last_rows(file) == [{"a": 1}]
    file.write_bytes(b"".join(dump({"a": i}) for i in range(5_000)) + b"{")
    assert last_rows(file) == [{"a": 4999}]
    assert last_rows(file, 1_000) == [{"a": i} for i in range(4_000, 5_000)]


def test_who_runs_now(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not runs_now(lock)
    held = Lock(lock)
    held.acquire()
    assert runs_now(lock)
    held.release()
    assert not runs_now(lock)
    lock.write_bytes(dump({"host": socket.gethostname(), "pid": 2**22 + 1}))
    assert not runs_now(lock)
    lock.write_bytes(dump({"host": "elsewhere", "pid": 1}))
    assert runs_now(lock)
    os.utime(lock, (1, 1))
    assert not runs_now(lock)
    lock.write_bytes(b"{")
    assert not runs_now(lock)


# -- the index


def rows(path: Path) -> list[tuple[str, str]]:
    return [(row["run"], row["event"]) for row in map(json.loads, path.read_text().splitlines())]


def ended(index: Index, code: int | None, at: str = BEGUN, run: str = "a") -> None:
    index.append(run, "started")
    index.append(run, "ended", code=code, node="n", place=at, last_lines="last")


def test_three_failures_in_a_row_without_progress(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.jsonl")
    for code, at, failures in [
        (1, "", 1), (-9, BEGUN, 2), (5, place(128), 0), (-6, place(128), 1), (75, place(128), 1), (None, place(128), 1),
        (1, place(128, 1), 0), (1, place(128, 1), 1), (3, place(128, 1), 2),
    ]:  # fmt: skip
        assert index["a"].hopeless == ""
        ended(index, code, at)
        assert index["a"].failures == failures
    assert index["a"].hopeless == ""
    ended(index, 4, place(128, 1))
    assert "failed 3 times without progress (last exit code 4)" in index["a"].hopeless
    again = Index(tmp_path / "index.jsonl")  # another driver counts the same
    assert again["a"] == index["a"]
    assert again["a"].attempts == 10
    again.append("a", "failed")
    assert Index(tmp_path / "index.jsonl")["a"].failed
    again.append("a", "retry")
    assert (again["a"].failed, again["a"].failures, again["a"].hopeless) == (False, 0, "")


def test_memory_and_lost_workers(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.jsonl")
    ended(index, 7, place(128))
    assert "ran out of memory" in index["a"].hopeless
    for lost in range(1, 10):
        ended(index, None, BEGUN, "b")
        assert (index["b"].lost, index["b"].failures, index["b"].hopeless) == (lost, 0, "")
    ended(index, None, place(128), "b")
    assert index["b"].lost == 0
    for _ in range(10):
        assert index["b"].hopeless == ""
        ended(index, None, place(128), "b")
    assert "10 times without progress" in index["b"].hopeless
    ended(index, -9, place(256), "c")
    ended(index, -9, place(128), "c")  # its newest checkpoint was damaged
    ended(index, -9, place(256), "c")  # here it was before: no progress
    assert index["c"].failures == 2


def test_a_torn_or_damaged_index(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    index = Index(path)
    ended(index, 1)
    ended(index, 1)
    index.append("b", "finished")
    whole = path.read_bytes()
    for damage in (
        whole + b'{"run": "a", "event": "fin',
        whole + b'{"run": "a", "event": "finished"}',  # no end of line: it may be half of another
        b"\x00\xff\n" + whole,
        whole + b"[]\n" + b'{"run": 3, "event": "finished"}\n' + b'{"run": "a", "event": "won"}\n',
        whole + b'{"run": "a", "event": "ended", "code": "7"}\n' + b'{"run": "a", "event": "ended", "place": 3}\n',
        whole + b'{"run": "a", "event": ' + b"[" * 100_000 + b"\n",
    ):
        path.write_bytes(damage)
        assert Index(path, writable=False)["a"].failures == 2
        assert path.read_bytes() == damage
        assert Index(path)["a"].failures == 2
        assert list(map(json.loads, path.read_bytes().splitlines())) == [
            {"code": None, "place": "", "last_lines": "", **row} for row in map(json.loads, whole.splitlines())
        ]
    path.unlink()
    assert Index(path).events == []


def test_finished_lines_follow_the_directories(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    index = Index(path)
    index.reconcile({"a": True, "b": False})
    assert rows(path) == [("a", "finished")]
    index.append("b", "finished")
    index.append("old", "finished")
    path.write_bytes(path.read_bytes() * 2)
    for _ in range(2):
        index = Index(path)
        index.reconcile({"a": True, "b": False, "c": True})
        assert rows(path) == [("a", "finished"), ("old", "finished"), ("c", "finished")]
    assert [index[name].finished for name in "abc"] == [True, False, True]


# -- the driver


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that failed are tried again at once."""
    monkeypatch.setattr(drive, "PAUSE", 0.0)


class Quiet:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.views: list[View] = []

    def begin(self, plan: Plan, where: str) -> None:
        self.said.append(where)

    def update(self, now: View) -> None:
        self.views.append(now)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


class Memory:
    """An engine in memory. A script has for each run what its attempts do: (exit code, steps it comes to)."""

    def __init__(self, root: Path, script: dict[str, list[tuple[int | None, int]]], then: Callable[[], None]) -> None:
        self.root, self.script, self.then = root, script, then
        self.orders: list[Order] = []
        self.begun: list[str] = []
        self.stopped = self.closed = False

    def make(self, jobs: Sequence[Job]) -> Memory:
        self.jobs = {job.name: job for job in jobs}
        return self

    def submit(self, order: Order) -> None:
        assert order.root == str(self.root)
        assert order.config == self.jobs[order.name].config.to_json()
        assert order.name not in [other.name for other in self.orders]
        self.orders.append(order)

    def wait(self, seconds: float) -> list[Outcome]:
        if not self.orders:
            return []
        order = self.orders.pop(0)
        if self.stopped:
            return [Outcome(order.name, 75, "here")]
        self.begun.append(order.name)
        steps = self.script.get(order.name, [])
        code, to = steps.pop(0) if steps else (0, 512)
        if to:
            write_run(self.root, self.jobs[order.name], place(to), finished=to == 512)
        self.then()
        return [Outcome(order.name, code, "here", f"last lines of {order.name}")]

    def describe(self) -> str:
        return "memory"

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


def drive_once(
    root: Path,
    script: dict[str, list[tuple[int | None, int]]] | None = None,
    plan: Plan | None = None,
    retry: bool = False,
    then: Callable[[], None] = lambda: None,
) -> tuple[Memory, Quiet, Any]:
    """The engine, what was said, and the view or the error at the end."""
    engine, quiet = Memory(root, script or {}, then), Quiet()
    try:
        end: Any = Driver(plan or planned(), root, quiet).run(engine.make, "dcpg sweep x", retry)
    except (Stopped, SweepIncomplete) as error:
        end = error
    assert not (root / "lock").exists()
    return engine, quiet, end


def test_all_runs_once(tmp_path: Path) -> None:
    engine, quiet, now = drive_once(tmp_path)
    assert engine.begun == NAMES
    assert engine.closed
    assert now.counts == {"done": 4, "running": 0, "waiting": 0, "failed": 0}
    assert (now.steps, now.steps_total, now.seconds_left) == (2048, 2048, 0.0)
    assert now.best() == {"starpilot": [("ppo", 2.5, 2), ("dcpg", 2.5, 2)]}
    assert quiet.said[:2] == ["memory", "starpilot-ppo-0 is done: return on unseen levels 2.00."]
    events = rows(tmp_path / "index.jsonl")
    assert events[:3] == [(NAMES[0], event) for event in ("started", "ended", "finished")]
    assert sorted(run for run, event in events if event == "finished") == sorted(NAMES)
    before = (tmp_path / "index.jsonl").read_bytes()
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == []
    assert now.counts["done"] == 4
    assert (tmp_path / "index.jsonl").read_bytes() == before


def test_failures_progress_and_giving_up(tmp_path: Path) -> None:
    script: dict[str, list[tuple[int | None, int]]] = {
        NAMES[0]: [(1, 0), (-6, 0), (5, 0), (0, 512)],  # never gets anywhere: the fourth try is not made
        NAMES[1]: [(1, 0), (-9, 128), (1, 128), (1, 128), (-9, 256), (75, 256), (0, 512)],
        NAMES[2]: [(7, 128), (0, 512)],  # no memory: not tried again
        NAMES[3]: [(None, 0)] * 9 + [(0, 512)],  # nodes die; it is not its fault
    }
    engine, quiet, end = drive_once(tmp_path, script)
    assert {name: engine.begun.count(name) for name in NAMES} == dict(zip(NAMES, (3, 7, 1, 10), strict=True))
    assert isinstance(end, SweepIncomplete)
    assert end.exit_code == 1
    for words in ("2 of 4 runs are done, 2 failed: starpilot-ppo-0, starpilot-ppo-1.", "dcpg sweep x --retry", "logs"):
        assert words in str(end)
    said = "\n".join(quiet.said)
    assert "starpilot-ppo-0 is given up: it failed 3 times without progress (last exit code 5)" in said
    assert "starpilot-ppo-1 is given up: it ran out of memory, and would again" in said
    assert "starpilot-ppo-0 was killed by signal 6 and is tried again (2 without progress)." in said
    index = Index(tmp_path / "index.jsonl")
    assert [index[name].failed for name in NAMES] == [True, False, True, False]
    assert [index[name].attempts for name in NAMES] == [3, 7, 1, 10]
    failed = [row for row in index.events if row["event"] == "failed"]
    assert [(row["run"], row["code"], row["last_lines"]) for row in failed] == [
        (NAMES[2], 7, f"last lines of {NAMES[2]}"), (NAMES[0], 5, f"last lines of {NAMES[0]}"),
    ]  # fmt: skip

    engine, _, end = drive_once(tmp_path)  # what was given up stays so
    assert engine.begun == []
    assert isinstance(end, SweepIncomplete)
    engine, _, end = drive_once(tmp_path, {NAMES[0]: [(1, 0), (1, 0), (0, 512)]}, retry=True)
    assert engine.begun == [NAMES[0], NAMES[2], NAMES[0], NAMES[0]]
    assert end.counts["done"] == 4
    events = rows(tmp_path / "index.jsonl")
    assert sorted(run for run, event in events if event == "finished") == sorted(NAMES)


def test_lost_ten_times(tmp_path: Path) -> None:
    engine, quiet, end = drive_once(tmp_path, {NAMES[0]: [(None, 0)] * 11})
    assert engine.begun.count(NAMES[0]) == 10
    assert isinstance(end, SweepIncomplete)
    assert any("its worker was lost, or it was stopped, 10 times without progress" in text for text in quiet.said)


@pytest.mark.parametrize("code", [0, 75])
def test_an_end_without_a_result_or_a_failure_is_not_repeated_for_ever(code: int, tmp_path: Path) -> None:
    engine, _, end = drive_once(tmp_path, {NAMES[0]: [(code, 0)] * 11})
    assert engine.begun.count(NAMES[0]) == 10
    assert isinstance(end, SweepIncomplete)


@pytest.mark.parametrize("code", [2, 6])
def test_what_refuses_every_run_stops_the_sweep_and_gives_nobody_up(code: int, tmp_path: Path) -> None:
    engine, _, end = drive_once(tmp_path, {name: [(code, 0)] * 5 for name in NAMES})
    assert engine.begun == NAMES[:3]
    assert engine.stopped
    assert isinstance(end, SweepIncomplete)
    assert "3 runs in a row could not begin" in str(end)
    assert f"The last one said: last lines of {NAMES[2]} When the cause is gone: dcpg sweep x" in str(end)
    engine, _, now = drive_once(tmp_path, {NAMES[1]: [(code, 0), (0, 512)]})  # one alone is its own matter
    assert engine.begun == [*NAMES, NAMES[1]]
    assert now.counts["done"] == 4


def test_a_run_that_failed_waits_before_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "PAUSE", 0.3)
    began: dict[str, list[float]] = {}
    engine = Memory(tmp_path, {NAMES[0]: [(1, 0), (1, 0), (0, 512)]}, lambda: None)
    engine.then = lambda: began.setdefault(engine.begun[-1], []).append(time.monotonic())
    Driver(planned(), tmp_path, Quiet()).run(engine.make, "dcpg sweep x")
    first, second, third = began[NAMES[0]]
    assert second - first >= 0.3
    assert third - second >= 0.6


def test_a_damaged_run_stops_nobody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, planned().jobs[1], place(128))
    (path / "config.json").write_text("{")
    engine, _, end = drive_once(tmp_path)
    assert engine.begun == [name for name in NAMES if name != NAMES[1]]
    assert isinstance(end, SweepIncomplete)
    assert f"3 of 4 runs are done, 1 failed: {NAMES[1]}." in str(end)
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path), "--json")
    assert code == 0
    (row,) = [row for row in json.loads(out)["runs"] if row["status"] == "failed"]
    assert (row["name"], "cannot be read" in row["last_lines"]) == (NAMES[1], True)


def test_a_result_counts_however_its_process_ended(tmp_path: Path) -> None:
    engine, _, end = drive_once(tmp_path, {NAMES[0]: [(-9, 512)]})
    assert engine.begun == NAMES
    assert end.counts["done"] == 4


class Died(Exception):
    """The driver is gone."""


def test_counts_survive_the_driver(tmp_path: Path) -> None:
    calls = []

    def die() -> None:
        calls.append(1)
        if len(calls) == 9:
            raise Died

    failing: dict[str, list[tuple[int | None, int]]] = {name: [(1, 0)] * 5 for name in NAMES}
    with pytest.raises(Died):
        drive_once(tmp_path, failing, then=die)
    assert [Index(tmp_path / "index.jsonl")[name].failures for name in NAMES] == [2, 2, 2, 2]
    engine, _, _ = drive_once(tmp_path, {name: [(1, 0)] * 5 for name in NAMES})
    assert engine.begun == NAMES  # one more try each: the ninth attempt's end was never heard of


def test_a_driver_that_died_before_it_gave_up(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    index = Index(tmp_path / "index.jsonl")
    ended(index, 7, run=NAMES[0])
    engine, _, end = drive_once(tmp_path)
    assert engine.begun == NAMES[1:]
    assert isinstance(end, SweepIncomplete)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_stops_the_sweep(tmp_path: Path, name: str) -> None:
    import signal

    engine, _, end = drive_once(tmp_path, then=lambda: os.kill(os.getpid(), signal.Signals[name]))
    assert isinstance(end, Stopped)
    assert end.exit_code == 75
    assert engine.stopped
    assert engine.begun == NAMES[:1]
    assert str(end) == (f"Stopped by {name}, and the runs are saved; 1 of 4 runs are done. Go on with: dcpg sweep x")
    index = Index(tmp_path / "index.jsonl")
    assert [index[n].attempts for n in NAMES] == [1, 0, 0, 0]  # the others never began
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == NAMES[1:]
    assert now.counts["done"] == 4


def test_one_driver_a_directory(tmp_path: Path) -> None:
    held = Lock(tmp_path / "lock")
    held.acquire()
    with pytest.raises(BadInput, match="is in use by process"):
        Driver(planned(), tmp_path, Quiet()).run(lambda jobs: Memory(tmp_path, {}, lambda: None), "")
    held.release()
    assert list(tmp_path.iterdir()) == []


def test_more_seeds_run_alone_and_another_configuration_is_refused(tmp_path: Path) -> None:
    drive_once(tmp_path)
    engine, _, now = drive_once(tmp_path, plan=planned(seeds=3))
    assert engine.begun == ["starpilot-ppo-2", "starpilot-dcpg-2"]
    assert now.counts["done"] == 6
    other = planned(seeds=4, set={"dcpg": {"algorithm": {"E_aux": 3}}})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=r"starpilot-dcpg-0: it has algorithm\.E_aux=6, the sweep 3"):
        drive_once(tmp_path, plan=other)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_lost_index_and_lost_results(tmp_path: Path) -> None:
    drive_once(tmp_path)
    (tmp_path / "index.jsonl").unlink()
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == []
    assert now.counts["done"] == 4
    assert rows(tmp_path / "index.jsonl") == [(name, "finished") for name in NAMES]
    shutil.rmtree(tmp_path / "runs" / NAMES[1])
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == [NAMES[1]]
    finished = [run for run, event in rows(tmp_path / "index.jsonl") if event == "finished"]
    assert sorted(finished) == sorted(NAMES)


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot be written to .*choose another --out"):
        drive_once(tmp_path / "file" / "sweep")


# -- on this machine


def test_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(methods=["ppo", "ddcpg"], preset="paper", steps=25_000_000)
    most = max(needs_of(job.config).memory for job in plan.jobs)
    assert most == needs_of(plan.jobs[1].config).memory > needs_of(plan.jobs[0].config).memory
    monkeypatch.setattr(local, "available_cores", lambda: 8)
    monkeypatch.setattr(local, "free_memory", lambda: 100 * most)
    assert capacity(plan.jobs).runs == 8
    monkeypatch.setattr(local, "free_memory", lambda: 3.5 * most)
    assert capacity(plan.jobs).runs == 3
    assert "GB of memory" in capacity(plan.jobs).reason
    monkeypatch.setattr(local, "free_memory", lambda: 0.5 * most)
    with pytest.raises(BadInput, match="There is no room for a run"):
        capacity(plan.jobs)
    anyway = planned(methods=["ppo", "ddcpg"], preset="paper", steps=25_000_000, set={"check_room": False})
    assert capacity(anyway.jobs).runs == 1
    monkeypatch.setattr(local, "free_memory", lambda: 100 * most)
    wide = planned(set={"machine": {"threads": 3}})
    assert capacity(wide.jobs).runs == 2
    with pytest.raises(BadInput, match="must be cpu, cuda or"):
        capacity(planned(set={"machine": {"device": "abacus"}}).jobs)


def test_gpus_are_handed_out_one_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(local, "available_cores", lambda: 8)
    monkeypatch.setattr(local, "free_memory", lambda: 1e12)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    plan = planned(set={"machine": {"device": "cuda"}})
    assert capacity(plan.jobs) == local.Capacity(2, "2 GPUs, one a run", ("4", "6"))
    assert capacity(planned(set={"machine": {"device": "cuda:1"}}).jobs).runs == 1
    seen: list[str] = []

    def attempted(order: Order, should_stop: Callable[[], bool], environment: dict[str, str]) -> Outcome:
        seen.append(environment["CUDA_VISIBLE_DEVICES"])
        if order.name == NAMES[1]:
            raise OSError(28, "No space left on device")
        return Outcome(order.name, 0, "here")

    monkeypatch.setattr(local, "attempt", attempted)
    engine = LocalEngine(plan.jobs)
    for name in NAMES:
        engine.submit(Order(str(tmp_path), name, {}))
    outcomes: list[Outcome] = []
    while len(outcomes) < 4:
        outcomes += engine.wait(5.0)
    assert {o.name: o.code for o in outcomes} == {NAMES[0]: 0, NAMES[1]: 1, NAMES[2]: 0, NAMES[3]: 0}
    assert "No space left" in next(o.last_lines for o in outcomes if o.name == NAMES[1])
    assert set(seen) <= {"4", "6"}
    engine.stop()
    engine.submit(Order(str(tmp_path), NAMES[0], {}))
    assert engine.wait(5.0)[0].code == 75
    assert len(seen) == 4
    engine.close()
    assert engine.wait(0.0) == []


def test_closing_ends_attempts_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process of a run that would never end is killed."""
    import subprocess
    import time

    real, children = subprocess.Popen, []

    def popen(words: list[str], **how: Any) -> Any:
        assert words[-1] == "dcpg.sweep.child"
        children.append(real(["sleep", "1000"], **how))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    engine = LocalEngine(planned().jobs)
    engine.submit(Order(str(tmp_path), NAMES[0], {}))
    while not children:
        time.sleep(0.01)
    engine.close()
    assert children[0].returncode == -9


def test_an_attempt_that_is_stopped_before_it_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import subprocess

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: real(["sleep", "1000"], **how))
    outcome = attempt(Order(str(tmp_path), "a", {}), lambda: True)
    assert (outcome.name, outcome.code, outcome.node) == ("a", 75, socket.gethostname())


@pytest.mark.parametrize(("after", "code"), [(4, -9), (5, 7)])
def test_a_process_that_the_system_kills_for_memory(
    after: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import subprocess

    from dcpg.machine import cgroup

    real, begun, asked = subprocess.Popen, list[Any](), list[int]()

    def popen(words: list[str], **how: Any) -> Any:
        begun.append(real(["sh", "-c", "sleep 0.5; kill -9 $$"], **how))
        return begun[-1]

    def kills() -> int:
        asked.append(1)
        if begun[0].returncode is not None:
            return after
        return 3 if len(asked) == 1 else 4  # a neighbour is killed meanwhile, which says nothing about this one

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(cgroup, "kills", kills)
    assert attempt(Order(str(tmp_path), "a", {}), lambda: False).code == code


def test_an_attempt_waits_for_the_directory_and_for_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    holder = Lock(run / "lock")
    holder.acquire()
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return True

    assert attempt(Order(str(tmp_path), "a", {}), should_stop).code == 75
    assert asked == [1]
    holder.release()
    (run / "lock").mkdir()  # no lock can be made here, and waiting would not help
    with pytest.raises(BadInput, match="cannot be written to"):
        attempt(Order(str(tmp_path), "a", {}), should_stop)


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_bytes(b"\xff" * 10_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(100)))
    assert last_lines(log).splitlines() == [f"line {i}" for i in range(70, 100)]


# -- what it costs, and how it stands


def fake_training(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if every method made 100 steps a second, ppo 200."""
    asked = []

    def training(config: Any, spaces: Any, rollouts: int) -> float:
        asked.append(config.method)
        return rollouts * config.rollout_size / (200 if config.method == "ppo" else 100)

    monkeypatch.setattr(cost, "training", training)
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    monkeypatch.setattr(local, "free_memory", lambda: 1e12)
    return asked


def test_dry_run_of_table1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = fake_training(monkeypatch)
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(capsys, "sweep", "table1", "--dry-run")
    assert code == 0
    assert len(asked) == 7  # one probe a method
    whole = 25_000_000 // 16_384 * 16_384
    seconds = 160 * whole / 200 + 6 * 160 * whole / 100
    lines = out.splitlines()
    assert lines[0] == f"table1: 1,120 runs of 25,000,000 steps; {1120 * whole:,} steps in whole rollouts"
    assert lines[1].startswith("Runs: bigfish-ppo-0, bossfight-ppo-0, ")
    assert lines[2] == "In sweeps/table1: 0 finished, 0 interrupted, 1120 not begun."
    assert "3.0 GB of memory" in lines[3]
    assert lines[-2] == f"On this machine, one after another: about {seconds / 86400:.1f} days."
    assert lines[-1] == f"4 side by side (4 cores, 1 a run): about {seconds / 4 / 86400:.1f} days."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "first"), [("ablations", "960 runs of 25,000,000"), ("stiffness", "256 runs of 8,000,000")]
)
def test_dry_run_of_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, first: str
) -> None:
    asked = fake_training(monkeypatch)
    code, out, _ = command(capsys, "sweep", name, "--dry-run", "--out", str(tmp_path / "out"))
    assert code == 0
    assert out.startswith(f"{name}: {first} steps")
    assert len(asked) == {"ablations": 6, "stiffness": 2}[name]
    assert ("`analyse`" in out) == (name == "stiffness")


def test_cost_of_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_training(monkeypatch)
    plan = planned()
    write_run(tmp_path, plan.jobs[0], place(512), finished=True)
    write_run(tmp_path, plan.jobs[1], place(384))
    Index(tmp_path / "index.jsonl").append(NAMES[2], "failed")
    found = cost.cost(plan, tmp_path)
    assert [(s.method, s.runs, s.steps, s.steps_per_s) for s in found.shares] == [
        ("dcpg", 2, 128 + 512, 100.0), ("ppo", 1, 512, 200.0),
    ]  # fmt: skip
    assert found.seconds == pytest.approx(640 / 100 + 512 / 200)
    assert found.seconds_side_by_side == pytest.approx(3.2)  # the longest cannot be divided
    assert found.disk == sum(needs_of(job.config).disk for job in plan.jobs)
    text = "\n".join(cost.lines(plan, tmp_path, found))
    assert "1 finished, 1 interrupted, 2 not begun (1 of these failed before" in text
    elsewhere = planned(set={"machine": {"device": "cuda:99"}})
    text = "\n".join(cost.lines(elsewhere, tmp_path / "new", cost.cost(elsewhere, tmp_path / "new")))
    assert "Time and room cannot be told here: machine.device is 'cuda:99'" in text


def test_a_real_probe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('methods = ["ppo", "dcpg"]\ngames = "starpilot"\nseeds = 2\npreset = "tiny"\nsteps = 512\n')
    code, out, _ = command(capsys, "sweep", str(file), "--dry-run", "--out", str(tmp_path / "out"))
    assert code == 0
    assert out.count(" steps/s ") == 2
    assert sorted(tmp_path.iterdir()) == [file]
    runs = capacity(planned().jobs).runs
    assert f"{runs} side by side" in out
    assert runs == max(1, min(available_cores(), int(free_memory() // needs_of(planned().jobs[1].config).memory)))


def test_status(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script: dict[str, list[tuple[int | None, int]]] = {NAMES[0]: [(-6, 0)] * 3, NAMES[2]: [(75, 256), (7, 256)]}
    drive_once(tmp_path, script)
    shutil.rmtree(tmp_path / "runs" / NAMES[3])
    lock = Lock(tmp_path / "runs" / NAMES[1] / "lock")
    write_run(tmp_path, planned().jobs[1], place(384))
    lock.acquire()
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path), "--json")
    found = json.loads(out)
    assert code == 0
    assert sorted(tmp_path.rglob("*")) == before
    runs = found.pop("runs")
    assert found == {
        "done": 0, "running": 1, "waiting": 1, "failed": 2, "steps": 640, "steps_total": 2048, "steps_per_s": 40.0,
        "seconds_left": (128 + 512) / 40,
    }  # fmt: skip
    assert runs[0] == {
        "name": NAMES[0], "method": "ppo", "game": "starpilot", "seed": 0, "status": "failed", "steps": 0,
        "train_return": None, "test_return": None, "attempts": 3, "last_lines": f"last lines of {NAMES[0]}",
    }  # fmt: skip
    assert runs[1] == {
        "name": NAMES[1], "method": "dcpg", "game": "starpilot", "seed": 0, "status": "running", "steps": 384,
        "train_return": 3.0, "test_return": 2.0, "attempts": 1,
    }  # fmt: skip
    assert [run["status"] for run in runs] == ["failed", "running", "failed", "waiting"]
    lock.release()
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path))
    assert code == 0
    assert "0 done  0 running  2 waiting  2 failed" in out
    assert "failed: starpilot-ppo-0: last lines of starpilot-ppo-0" in out


def test_status_of_odd_directories(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drive_once(tmp_path / "sweep")
    plan = tmp_path / "sweep" / "sweep.json"
    whole = json.loads(plan.read_text())
    for content, said in [
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (dump({**whole, "schema": 99}), "is not a sweep that this program knows"),
        (dump({**whole, "sweep": {**TINY, "games": "../../etc"}}), "Unknown game"),
        (dump({**whole, "runs": ["../../etc"]}), "does not name the runs that it means"),
    ]:
        plan.write_bytes(content)
        code, _, err = command(capsys, "sweep", "status", str(tmp_path / "sweep"))
        assert code == 2
        assert said in err
    assert command(capsys, "sweep", "status", str(tmp_path))[0] == 2
    assert command(capsys, "sweep", "status")[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["laptop", "table1"], "One sweep at a time"),
        (["laptop", "--json"], "--json goes with"),
        (["laptop", "--address", "x"], "--address goes with --engine ray"),
        (["labtop"], "did you mean 'laptop'"),
        (["../laptop"], "There is no file"),
    ],
)
def test_commands_that_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, "sweep", *words)
    assert code == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_with_an_engine_in_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, root = tmp_path / "small.toml", tmp_path / "a b"
    file.write_text('methods = ["ppo", "dcpg"]\ngames = "starpilot"\nseeds = 2\npreset = "tiny"\nsteps = 512\n')
    engine = Memory(root, {NAMES[0]: [(7, 0)]}, lambda: None)
    monkeypatch.setattr(local, "LocalEngine", engine.make)
    code, out, err = command(capsys, "sweep", str(file), "--out", str(root))
    assert code == 1
    assert "3 of 4 runs are done, 1 failed: starpilot-ppo-0." in err
    assert f"dcpg sweep {file} --out '{root}' --retry" in err
    assert "small: 4 runs on memory" in out
    code, out, _ = command(capsys, "sweep", str(file), "--out", str(root), "--retry")
    assert code == 0
    assert out.splitlines()[-1] == f"Next: dcpg report '{root}'"
    assert from_directory(root)[1].counts["done"] == 4


def test_tables(tmp_path: Path) -> None:
    plan = planned()
    drive_once(tmp_path, plan=plan)
    _, now = from_directory(tmp_path)
    wide = Console(width=80, record=True, file=io.StringIO())
    table = LiveTable(wide)
    table.begin(plan, "a machine")
    table.update(now)
    table.say("something [happened]")
    table.close()
    wide.print(picture(now))
    text = wide.export_text()
    assert "small: 4 runs on a machine" in text
    assert "something [happened]" in text
    assert "4 done  0 running  0 waiting  0 failed" in text
    assert "starpilot  ppo 2.50 (2)  dcpg 2.50 (2)" in text
    assert max(map(len, text.splitlines())) <= 80
    plain = Console(width=80, record=True, file=io.StringIO())
    lines = PlainTable(plain)
    lines.update(now)
    lines.close()
    assert plain.export_text().startswith("4 done  0 running  0 waiting  0 failed   100.0% of 2,048 steps")
