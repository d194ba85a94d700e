"""What must not cost a run its work: moved files, suspended processes, environments that fail or hang, flipped bits."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import dcpg
from dcpg.errors import BadInput, InUse, Notice, NoValidCheckpoint, StorageFailed
from dcpg.storage import checkpoint, files
from dcpg.storage.checkpoint import sealed
from dcpg.storage.lock import Lock
from dcpg.storage.rows import Evaluation, Metrics, read_rows
from dcpg.training import stop
from dcpg.training.observer import Observer
from dcpg.training.stop import Watchdog
from dcpg.training.trainer import Trainer

TINY = {
    "evaluation.every": 2, "evaluation.episodes": 2, "evaluation.max_steps": 20, "env.frame_size": 16,
    "network.channels": (4, 8),
}  # fmt: skip
OWN = {"evaluation.episodes": 2, "evaluation.max_steps": 20}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rollouts."""
    out = tmp_path_factory.mktemp("luck") / "run"
    dcpg.train("ppo", "maze", preset="tiny", steps=256, out=out, settings=TINY, progress=False)
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("0*"))


def test_a_run_whose_config_was_moved_away_keeps_its_checkpoints(tmp_path: Path) -> None:
    class Mover(Observer):
        def row(self, row: Metrics, steps_per_s: float) -> None:
            if row.rollout == 1:
                (tmp_path / "run" / "config.json").rename(tmp_path / "config.json")

    dcpg.train(
        "ppo", "maze", preset="tiny", steps=256, out=tmp_path / "run", settings=TINY, observer=Mover(), progress=False
    )
    assert newest(tmp_path / "run").name.startswith(f"{256:012d}")
    (tmp_path / "config.json").rename(tmp_path / "run" / "config.json")
    assert dcpg.evaluate(tmp_path / "run", levels="3")["steps"] == 256


# -- environments of your own


class Moody(gymnasium.Env[Any, Any]):
    """Ends after five steps; what `mood` says goes wrong does so from now on."""

    mood: Callable[[str], None] = staticmethod(lambda what: None)

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        Moody.mood("reset")
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, self.t == 5, False, {}

    def close(self) -> None:
        Moody.mood("close")


def make(num_envs: int, seed: int) -> SyncVectorEnv:
    return SyncVectorEnv([Moody] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def test_a_reset_that_fails_once_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    dcpg.train("ppo", env=make, preset="tiny", steps=256, out=out, settings=OWN, progress=False)
    before = sorted(p.name for p in (out / "checkpoints").iterdir())
    resets: list[str] = []

    def starting(what: str) -> None:
        resets.append(what)
        if resets.count("reset") > 8 and "failed" not in resets:  # the environments are made, and return to the state
            resets.append("failed")
            raise ValueError("the simulator is still starting")

    with monkeypatch.context() as changed:
        changed.setattr(Moody, "mood", staticmethod(starting))
        with pytest.raises(BadInput, match=r"reset failed .*still starting.*nothing was changed"):
            dcpg.resume(out, steps=384, env=make, progress=False)
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == before
    assert dcpg.resume(out, steps=384, env=make, progress=False).summary["steps"] == 384


def test_an_environment_that_hangs_is_watched_when_it_is_closed_and_when_a_run_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[str | None] = []
    out = tmp_path / "run"
    trainers: list[Trainer] = []
    made = Trainer.__init__

    def noted(trainer: Trainer, *given: Any, **more: Any) -> None:
        trainers.append(trainer)
        made(trainer, *given, **more)

    def look(what: str) -> None:
        if trainers and (what == "close" or "restored" not in watched):
            watched.append(trainers[-1].watchdog._watched if hasattr(trainers[-1], "watchdog") else None)
            if what == "close":
                watched.append(json.loads((out / "summary.json").read_bytes())["status"])

    monkeypatch.setattr(Trainer, "__init__", noted)
    monkeypatch.setattr(Moody, "mood", staticmethod(look))
    dcpg.train("ppo", env=make, preset="tiny", steps=128, out=out, settings=OWN, progress=False)
    assert watched[-2:] == ["the environments' close()", "finished"]
    watched.clear()
    dcpg.resume(out, steps=256, env=make, progress=False)
    assert "your environment" in watched


def test_reading_the_states_of_environments_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[str | None, bool]] = []
    dogs: list[Watchdog] = []
    made = Watchdog.__init__

    def noted(dog: Watchdog, lock: Lock, timeout: float, *advice: str) -> None:
        dogs.append(dog)
        made(dog, lock, timeout, *advice)

    class Saved(SyncVectorEnv):
        def get_state(self) -> list[bytes]:
            watched.append((dogs[-1]._watched, not dogs[-1]._ended.is_set()))
            return [b""]

        def set_state(self, states: list[bytes]) -> None: ...

    def saved(num_envs: int, seed: int) -> SyncVectorEnv:
        return Saved([Moody] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    def look(what: str) -> None:
        if len(dogs) == 1:
            watched.append((f"{what}: {dogs[0]._watched}", not dogs[0]._ended.is_set()))

    monkeypatch.setattr(Watchdog, "__init__", noted)
    monkeypatch.setattr(Moody, "mood", staticmethod(look))
    dcpg.train("ppo", env=saved, preset="tiny", steps=256, out=tmp_path / "run", settings=OWN, progress=False)
    first = [("reset: your environment's first reset", True)] * 8
    # when the environments are made, when the run is, and after each rollout
    assert watched == [*first, *[("the environments", True)] * 3]


# -- storage


def test_saving_is_tried_again_after_a_pause_however_short_phases_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    save = checkpoint.CheckpointStore.save

    def failing(store: checkpoint.CheckpointStore, name: str, *rest: Any) -> None:
        tried.append(name)
        if len(tried) > 1 and not name.startswith("000000001024"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        save(store, name, *rest)

    monkeypatch.setattr(checkpoint.CheckpointStore, "save", failing)
    more = TINY | {"algorithm.N_pi": 1, "algorithm.E_aux": 1}
    found = dcpg.train("dcpg", "maze", preset="tiny", steps=1024, out=tmp_path / "run", settings=more, progress=False)
    assert found.summary["status"] == "finished"
    assert [name[:12] for name in tried] == ["000000000000", "000000000128", "000000001024"]


# -- processes


def test_processes_that_the_program_had_before_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    before = subprocess.Popen(["sleep", "60"])
    stop.spare_children()
    after = subprocess.Popen(["sleep", "60"])
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    stop._end("The environment hangs.", 5)
    assert (after.wait(), before.poll(), codes) == (-signal.SIGKILL, None, [5])
    before.kill()
    before.wait()


STOPPED = """
import math, sys, time
from pathlib import Path
from dcpg.storage.lock import Lock
from dcpg.training.stop import Watchdog
lock = Lock(Path(sys.argv[1]))
lock.acquire()
watchdog = Watchdog(lock, 2.0)
with watchdog, watchdog.watching("the environments"):
    print("ready", flush=True)
    end = time.monotonic() + 8.0
    while time.monotonic() < end:
        time.sleep(0.5)
        watchdog.alive()
lock.release()
"""


@pytest.mark.faults
def test_a_process_that_was_suspended_is_no_environment_that_hangs(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path / "lock")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(5.0)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0


def test_a_watchdog_can_be_entered_again(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    watchdog = Watchdog(lock, math.inf)
    for _ in range(2):
        before = lock.counter
        with watchdog:
            end = time.monotonic() + 20
            while lock.counter == before and time.monotonic() < end:
                time.sleep(0.05)
        assert lock.counter > before
    lock.release()


@pytest.mark.parametrize(("times", "ends"), [(1, True), (20, False)])
def test_a_slow_heartbeat_hides_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, ends: bool
) -> None:
    def slow(lock: Lock) -> bool:
        time.sleep(1.2)
        return True

    codes: list[int] = []
    monkeypatch.setattr(Lock, "beat", slow)
    monkeypatch.setattr(stop, "_end", lambda why, code: codes.append(code))
    monkeypatch.setattr(stop.faulthandler, "dump_traceback", lambda file: None)
    watchdog = Watchdog(Lock(tmp_path / "lock"), 0.2)  # it looks after 0.05 s and the time of a heartbeat
    end = time.monotonic() + (60 if ends else 3)
    with watchdog, watchdog.watching("the environments", times):
        while not codes and time.monotonic() < end:
            time.sleep(0.1)
    assert bool(codes) == ends


def test_a_lock_that_was_taken_over_during_a_resume_ends_it_before_anything_is_changed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lock, "beat", lambda lock: False)
    monkeypatch.setattr(Watchdog, "_watch", lambda watchdog: None)
    rows = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(rows + b'{"torn')
    with pytest.raises(InUse, match="Another process has taken over"):
        dcpg.resume(run, steps=384, progress=False)
    assert (run / "metrics.jsonl").read_bytes() == rows + b'{"torn'


# -- bytes


@pytest.mark.parametrize("name", ["metrics.jsonl", "eval.jsonl"])
def test_a_row_that_is_no_longer_one_costs_no_checkpoint(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((run / name).read_bytes())
    assert data[0] == ord("{")
    data[0] ^= 1
    (run / name).write_bytes(data)
    found = dcpg.resume(run, steps=384, progress=False)
    assert f"{name} is not as this run wrote it" in capsys.readouterr().err
    assert found.summary["steps"] == 384
    assert found.summary["altered"] == [name]
    assert not list((run / "checkpoints").glob("damaged-*"))
    assert (run / name).read_bytes().startswith(data[: data.index(b"\n") + 1])


def test_a_summary_has_the_last_evaluation_whatever_is_before_it(run: Path) -> None:
    lines = (run / "eval.jsonl").read_bytes().split(b"\n")
    lines[0] = b"#" + lines[0][1:]
    (run / "eval.jsonl").write_bytes(b"\n".join(lines))
    found = dcpg.resume(run, steps=384, progress=False)
    last = json.loads((run / "eval.jsonl").read_bytes().splitlines()[-1])
    assert last["steps"] == 384
    assert found.summary["train_returns"] == last["train_returns"]


def test_a_line_end_within_a_row_loses_no_evaluation(run: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    data = (run / "eval.jsonl").read_bytes()
    (run / "eval.jsonl").write_bytes(data.replace(b", ", b",\r", 1))
    for one in (run, whole):
        dcpg.resume(one, steps=640, progress=False)
    assert [row["steps"] for row in read_rows(run / "eval.jsonl")] == [128, 384, 640]
    assert (run / "eval.jsonl").read_bytes().replace(b",\r", b", ", 1) == (whole / "eval.jsonl").read_bytes()


@pytest.mark.parametrize("rest", [b"", b'{"k": 1, "roll'])
def test_an_evaluation_whose_row_is_lost_is_played_again(run: Path, tmp_path: Path, rest: bytes) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    lines = (run / "eval.jsonl").read_bytes().splitlines(keepends=True)
    (run / "eval.jsonl").write_bytes(b"".join(lines[:-1]) + rest)
    dcpg.resume(run, progress=False)
    assert (run / "eval.jsonl").read_bytes() == (whole / "eval.jsonl").read_bytes()
    for one in (run, whole):
        dcpg.resume(one, steps=512, progress=False)
    assert (run / "eval.jsonl").read_bytes() == (whole / "eval.jsonl").read_bytes()


@pytest.mark.parametrize("steps", [None, 256])
def test_a_longer_run_that_dies_before_it_is_saved_has_altered_nothing(
    run: Path, tmp_path: Path, steps: int | None
) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))

    class Killer(Observer):
        def evaluation(self, row: Evaluation) -> None:
            raise KeyError("as if killed")  # the row of rollout 3 has the place of the final one of the shorter run

    with pytest.raises(KeyError):
        dcpg.resume(run, steps=640, observer=Killer(), progress=False)
    assert [row["rollout"] for row in read_rows(run / "eval.jsonl")] == [1, 3]
    found = dcpg.resume(run, steps=steps, progress=False)
    if steps is None:
        dcpg.resume(whole, steps=640, progress=False)
    assert "altered" not in found.summary
    assert (run / "eval.jsonl").read_bytes() == (whole / "eval.jsonl").read_bytes()


def test_a_run_whose_config_could_not_be_synced_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"

    def failing(path: Path) -> None:
        if (out / "config.json").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    sync = files.fsync_dir
    with monkeypatch.context() as changed:
        changed.setattr(files, "fsync_dir", failing)
        with pytest.raises(StorageFailed):
            dcpg.train("ppo", "maze", preset="tiny", steps=128, out=out, settings=TINY, progress=False)
    assert not out.exists()
    dcpg.train("ppo", "maze", preset="tiny", steps=128, out=out, settings=TINY, progress=False)


def damaged_newest(run: Path, name: str = "weights.safetensors") -> None:
    with open(newest(run) / name, "ab") as file:
        file.write(b"x")


def test_older_weights_come_with_a_warning_and_are_not_exported(run: Path, tmp_path: Path) -> None:
    damaged_newest(run)
    with pytest.warns(Notice, match=r"the weights at 0 steps: the newest checkpoint of .* is damaged .*safetensors"):
        assert dcpg.evaluate(run, levels="3")["steps"] == 0
    with (
        pytest.raises(NoValidCheckpoint, match=r"The newest checkpoint of .* is damaged .*resume the run to mend it"),
        pytest.warns(Notice),
    ):
        dcpg.export(run, out=tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_weights_that_cannot_be_read_now_are_not_replaced_by_older_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, most: int) -> bytes:
        if path == newest(run) / "weights.safetensors":
            raise OSError(24, os.strerror(24), str(path))
        return read(path, most)

    read = checkpoint.read_regular
    monkeypatch.setattr(checkpoint, "read_regular", refused)
    with pytest.raises(StorageFailed, match="cannot be read"):
        dcpg.evaluate(run, levels="3")


@pytest.mark.parametrize("name", ["weights.safetensors", "adam.safetensors"])
@pytest.mark.parametrize(("dtype", "shape"), [("F32", [0, 2**62, 2**62]), ("F8_E8M0", [0])])
def test_tensors_that_torch_does_not_take_make_a_checkpoint_damaged(
    run: Path, name: str, dtype: str, shape: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    place = newest(run)
    data = (place / name).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    end = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
    header["odd"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    changed = struct.pack("<Q", len(text)) + text + data[8 + length :]
    (place / name).write_bytes(changed)
    manifest = json.loads((place / "manifest.json").read_bytes())
    manifest["files"][name] = {"size": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
    (place / "manifest.json").write_bytes(sealed(manifest))
    assert dcpg.resume(run, progress=False).summary["steps"] == 256
    assert f"Damaged checkpoint set aside, {place.name}" in capsys.readouterr().err
