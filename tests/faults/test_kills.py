"""Faults 1 to 3: kill -9 anywhere, and a power cut that loses what was not synced."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import driver
from tests.faults.driver import METHODS, TERMS, Driver, differences, each, events, record, spread, temporary

pytestmark = pytest.mark.faults

# a phase of two rollouts; a save at the start, at the phase's end and at the run's end
PLAIN: tuple[str, ...] = ()
# a save in the middle of the auxiliary phase, which writes the files that checkpoints share
MIDDLE = ("at auxiliary 3 SIGTERM",)
# a save after each step
EACH_STEP = ("checkpoints.minutes=0.00001",)
# a save in the first rollout: at the same place as the first save
AGAIN = ("at collect 5 SIGTERM",)


def traced(runs: Driver, tmp_path: Path, faults: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Every file operation of a run, and the number of the first one after the first checkpoint."""
    runs.train(tmp_path / "traced", *faults, f"trace-disk {tmp_path / 'events'}", steps=256)
    return events(tmp_path / "events")


def begun(found: list[tuple[int, str, str]]) -> int:
    """The number of the sync after which the run exists: config.json is written last, after the first checkpoint."""
    return 1 + next(n for n, kind, path in found if kind == "replace" and path.endswith("config.json"))


@pytest.mark.parametrize("faults", [PLAIN, MIDDLE], ids=["phase-end", "middle-of-auxiliary-phase"])
def test_kill_at_each_operation_of_a_save(
    runs: Driver, reference: Callable[..., Path], tmp_path: Path, faults: tuple[str, ...]
) -> None:
    found = traced(runs, tmp_path, faults)
    after = [event for event in found if event[0] > begun(found)]
    kinds = ("write", "fsync", "replace", "unlink", "rmdir", "mkdir")
    jobs = [(n, "whole") for kind in kinds for n, k, _ in spread([e for e in after if e[1] == kind], 3)]
    jobs += [(n, "torn") for n, _, _ in spread([e for e in after if e[1] == "write"], 4)]
    assert len(jobs) > 10

    def work(job: tuple[int, str]) -> None:
        out = tmp_path / f"{job[0]}-{job[1]}"
        ended = runs.train(out, *faults, f"die-at-disk {job[0]} {job[1]}", steps=256)
        assert ended.code == -9, str(ended)
        runs.recovers(out, reference("ddcpg", 256))

    each(jobs, work, f"1 kill at an operation of a save ({'middle' if faults else 'phase end'})")


def test_kill_while_a_save_replaces_the_only_checkpoint(
    runs: Driver, reference: Callable[..., Path], tmp_path: Path
) -> None:
    found = traced(runs, tmp_path, AGAIN)
    first = begun(found)
    jobs = spread([n for n, _, _ in found if n > first], 14)

    def work(number: int) -> None:
        out = tmp_path / str(number)
        assert runs.train(out, *AGAIN, f"die-at-disk {number}", steps=256).code == -9
        runs.recovers(out, reference("ddcpg", 256))

    each(jobs, work, "1 kill at an operation of a save at the same place")


def test_killed_before_it_began_a_run_is_started_again(
    runs: Driver, reference: Callable[..., Path], tmp_path: Path
) -> None:
    """Without config.json there is no run: `resume` says so and `train` begins it."""
    found = traced(runs, tmp_path, PLAIN)
    jobs = spread([n for n, _, _ in found if n < begun(found)], 6)

    def work(number: int) -> None:
        out = tmp_path / str(number)
        assert runs.train(out, f"die-at-disk {number}", steps=256).code == -9
        assert runs.resume(out).code == 2
        ended = runs.train(out, steps=256)
        assert ended.code == 0, str(ended)
        assert differences(out, reference("ddcpg", 256)) == []
        assert temporary(out) == []

    each(jobs, work, "1 kill before the run began")


def test_kill_at_each_operation_of_a_resume(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    whole = driver.copy(stopped, tmp_path / "whole")
    driver.flip(driver.newest(whole) / "weights.safetensors")
    traced_copy = driver.copy(whole, tmp_path / "traced")
    assert runs.resume(traced_copy, f"trace-disk {tmp_path / 'events'}", "at auxiliary 1 kill").code == -9
    jobs = spread([n for n, _, _ in events(tmp_path / "events")], 10)

    def work(number: int) -> None:
        out = driver.copy(whole, tmp_path / str(number))
        assert runs.resume(out, f"die-at-disk {number}").code == -9
        runs.recovers(out, reference())

    each(jobs, work, "1 kill at an operation of a resume past a damaged checkpoint")


@pytest.mark.parametrize("method", METHODS)
def test_kill_at_random_instants(runs: Driver, reference: Callable[..., Path], tmp_path: Path, method: str) -> None:
    """Killed from outside at random instants, with checkpoints every few steps, until it is done."""
    expected = reference(method)
    kills, inside = [0], [0]

    def work(seed: int) -> None:
        out, chance = tmp_path / f"{method}-{seed}", random.Random(f"{method}-{seed}")
        process = runs.start(driver.train_arguments(out, method, more=["checkpoints.minutes=0.002"]))
        for _ in range(4):
            rows, pause = chance.choice([0, 0, 1, 1, 2, 3]), chance.uniform(0.0, 0.75)
            driver.until(lambda p=process, r=rows: p.ended() or (_rows(out) >= r and bool(driver.names(out))))
            ended = process.killed_after(pause)  # so many rows, and a bit more
            assert ended.code in (0, -9), str(ended)
            kills[0] += ended.code == -9
            inside[0] += driver.inside_second_line(driver.names(out)[-1])
            process = runs.start(["resume", str(out)])
        ended = process.wait()
        assert ended.code == 0, str(ended)
        assert differences(out, expected) == []
        assert temporary(out) == []

    each([1, 2], work)
    assert kills[0] > 0
    record(f"2 kill -9 at random instants, {method} ({inside[0]} from inside a second line)", kills[0], kills[0])


def _rows(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_kill_inside_the_last_line(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """A resume starts inside the last line, again and again, and repeats nothing that was saved."""

    def work(method: str) -> None:
        out, expected, last = tmp_path / method, reference(method, 256), list(TERMS[method])[-1]
        fault = f"at {last} { {'auxiliary': 3, 'value': 8, 'policy': 12}[last] } kill"
        ended = runs.train(out, fault, method=method, steps=256, more=EACH_STEP)
        places, kills = [], 1
        while ended.code == -9:
            newest = driver.names(out)[-1]
            if places:
                assert newest > places[-1]  # progress was kept
            places.append(newest)
            ended = runs.resume(out, fault)
            kills += ended.code == -9
        assert ended.code == 0, str(ended)
        assert last == "policy" or all(driver.inside_second_line(name) for name in places)
        assert len(places) >= 3
        assert differences(out, expected) == []
        assert temporary(out) == []
        record(f"2 kill inside the {last} line, {method}", kills, kills)

    each(METHODS, work)


def test_kill_in_every_line(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """While it collects the second rollout and in the steps of each Adam, one after the other in the same run."""

    def work(method: str) -> None:
        out = tmp_path / method
        ended = runs.train(out, "at collect 20 kill", method=method, steps=256, more=EACH_STEP)
        for name in TERMS[method]:
            assert ended.code == -9, str(ended)
            ended = runs.resume(out, f"at {name} 3 kill")
        assert ended.code == -9, str(ended)
        runs.recovers(out, reference(method, 256))
        kills = 1 + len(TERMS[method])
        record(f"2 kill in every line, {method}", kills, kills)

    each(METHODS, work)


@pytest.mark.parametrize(
    ("method", "more"),
    [("ucb-drac", ()), ("plr", ()), ("ddcpg", driver.BOTH)],
    ids=["ucb-drac", "plr", "ddcpg-with-both"],
)
def test_kill_after_arms_and_levels_were_chosen(
    runs: Driver, reference: Callable[..., Path], tmp_path: Path, method: str, more: tuple[str, ...]
) -> None:
    """The memory of the bandit and of the level sampler: neither is empty at the kills, and both go on as they were."""
    out, places = tmp_path / "run", ["collect 10", *(f"{name} 3" for name in TERMS[method])]
    ended = runs.train(out, "at collect 56 kill", method=method, more=[*more, *EACH_STEP])
    for place in places:
        assert ended.code == -9, str(ended)
        ended = runs.resume(out, f"at {place} kill")
    assert ended.code == -9, str(ended)
    rows = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    if method != "plr":
        bandit = driver.memory(driver.newest(out), "augmentation")
        assert bandit["total"] > 1
        assert len({row["augmentation"] for row in rows}) > 1
    if method != "ucb-drac":
        levels = driver.memory(driver.newest(out), "levels")
        assert [row["levels_scored"] for row in rows[-2:]] == [len(levels["scores"])] * 2 == [10, 10]
        assert rows[-1]["episode_lengths"]  # all levels had scores when these episodes ended: replays came next
    runs.recovers(out, reference(method, more=more))
    record(
        f"2 kill with arms and levels chosen, {method}{' with both' if more else ''}", 1 + len(places), 1 + len(places)
    )


def test_kill_in_every_part(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    def work(place: str) -> None:
        out = tmp_path / place.replace(" ", "-")
        assert runs.train(out, f"at {place} kill", steps=256).code == -9
        runs.recovers(out, reference("ddcpg", 256))

    each(["policy 5", "remember 1", "evaluate 3", "save 2", "written 8", "collect 20"], work, "2 kill in every part")


def test_the_newest_checkpoint_of_a_finished_run_is_its_end(runs: Driver, tmp_path: Path) -> None:
    """Checkpoints of the last auxiliary phase must not come after the run's end, and `eval` repeats the last row."""
    out = tmp_path / "run"
    assert runs.train(out, steps=256, more=["checkpoints.minutes=0.00001"]).code == 0
    last = json.loads((out / "eval.jsonl").read_text().splitlines()[-1])
    for split in ("train", "test"):
        ended = runs.run(["eval", str(out), "--levels", split, "--json"])
        assert ended.code == 0, str(ended)
        assert json.loads(ended.out)["returns"] == last[f"{split}_returns"]
        assert json.loads(ended.out)["predicted_value"] == last[f"{split}_predicted_value"]
    assert driver.FINAL.fullmatch(driver.names(out)[-1]), driver.names(out)


@pytest.mark.parametrize("names", ["data", "names"])
def test_power_cut(runs: Driver, reference: Callable[..., Path], tmp_path: Path, names: str) -> None:
    """What was not synced is gone: bytes, and then also names whose folder was not synced."""
    jobs = []
    for faults, count in ((PLAIN, 6), (MIDDLE, 8)):
        folder = tmp_path / str(len(faults))
        folder.mkdir()
        found = traced(runs, folder, faults)
        jobs += [(faults, n) for n, _, _ in spread([e for e in found if e[0] > begun(found)], count)]

    def work(job: tuple[tuple[str, ...], int]) -> None:
        faults, number = job
        out = tmp_path / f"{len(faults)}-{number}"
        ended = runs.train(out, *faults, f"power-cut {number} {names}", steps=256)
        assert ended.code == -9, str(ended)
        runs.recovers(out, reference("ddcpg", 256))

    what = "bytes" if names == "data" else "bytes and names"
    each(jobs, work, f"3 power cut, unsynced {what} lost")
