"""Checkpoints: complete or absent, checked, pruned, and harmless to load."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dcpg.errors import BadInput, NoValidCheckpoint, StorageFailed
from dcpg.storage import checkpoint
from dcpg.storage.checkpoint import Checkpoint, CheckpointStore, Damaged, sealed
from dcpg.storage.rundir import RunDirectory

NAMES = [f"{i:012d}-00" for i in range(1, 7)]
WEIGHTS, STATE = "weights.safetensors", "state.json"
A, B = "rollout-00000001.frames", "kept-00000001.safetensors"
ABOUT = {"method": "dcpg", "config": "0" * 64}


def saved(root: Path, name: str, *, shared: dict[str, bytes] | None = None, phase_end: bool = False) -> CheckpointStore:
    root.mkdir(exist_ok=True)
    store = CheckpointStore(root)
    files = {k: (lambda v=v: v) for k, v in (shared or {}).items()}
    store.save(name, {WEIGHTS: name.encode(), STATE: b"{}"}, files, ABOUT | {"phase_end": phase_end})
    return store


def newest(store: CheckpointStore) -> tuple[str, list[str]]:
    warnings, taken = list[str](), list[Checkpoint]()
    store.newest_valid(taken.append, warnings.append)
    return taken[-1].name, warnings


def test_round_trip(tmp_path: Path) -> None:
    store = saved(tmp_path, NAMES[0], shared={A: b"frames"})
    taken: list[Checkpoint] = []
    store.newest_valid(taken.append, print)
    assert taken[0].files == {WEIGHTS: NAMES[0].encode(), STATE: b"{}", f"shared/{A}": b"frames"}


def test_two_and_the_last_phase_end_are_kept(tmp_path: Path) -> None:
    for i, name in enumerate(NAMES):
        saved(tmp_path, name, phase_end=i in (0, 1))
    assert CheckpointStore(tmp_path).names() == [NAMES[1], NAMES[4], NAMES[5]]


def test_what_a_user_has_put_beside_them_is_left(tmp_path: Path) -> None:
    saved(tmp_path, NAMES[0])
    shutil.copytree(tmp_path / NAMES[0], tmp_path / f"{NAMES[0]}.bak")
    for name in NAMES[1:]:
        saved(tmp_path, name)
    assert CheckpointStore(tmp_path).names() == NAMES[-2:]
    assert (tmp_path / f"{NAMES[0]}.bak" / WEIGHTS).is_file()


def test_a_shared_file_lives_as_long_as_a_manifest_names_it(tmp_path: Path) -> None:
    saved(tmp_path, NAMES[0], shared={A: b"1"}, phase_end=True)
    saved(tmp_path, NAMES[1], shared={A: b"1", B: b"2"})
    saved(tmp_path, NAMES[2], shared={B: b"2"}, phase_end=True)
    assert {p.name for p in (tmp_path / "shared").iterdir()} == {A, B}
    saved(tmp_path, NAMES[3])
    assert {p.name for p in (tmp_path / "shared").iterdir()} == {B}


def test_a_shared_file_is_written_once(tmp_path: Path) -> None:
    store = saved(tmp_path, NAMES[0], shared={A: b"1"})
    made: list[int] = []
    store.save(NAMES[1], {STATE: b"{}"}, {A: lambda: made.append(1) or b"1"}, ABOUT)
    assert made == []


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest", "schema"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    for name in NAMES[:3]:
        store = saved(tmp_path, name)
    file = tmp_path / NAMES[2] / WEIGHTS
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "flip":
        data = bytearray(file.read_bytes())
        data[3] ^= 1
        file.write_bytes(data)
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        (tmp_path / NAMES[2] / "manifest.json").write_text("{")
    else:
        manifest = tmp_path / NAMES[2] / "manifest.json"
        manifest.write_bytes(sealed(json.loads(manifest.read_text()) | {"schema": 99}))
    name, warnings = newest(store)
    assert name == NAMES[1]
    assert len(warnings) == 1
    assert NAMES[2] in warnings[0]
    # it does not count any more, and a new one of the same name takes its place
    assert store.names() == NAMES[1:2]
    assert newest(saved(tmp_path, NAMES[2]))[0] == NAMES[2]


def test_damage_to_a_shared_file_falls_back_to_the_phase_end(tmp_path: Path) -> None:
    saved(tmp_path, NAMES[0], phase_end=True)
    for name in NAMES[1:4]:
        store = saved(tmp_path, name, shared={A: b"frames"})
    (tmp_path / "shared" / A).write_bytes(b"framez")
    name, warnings = newest(store)
    assert name == NAMES[0]
    assert len(warnings) == 2


def test_none_valid_changes_nothing(tmp_path: Path) -> None:
    for name in NAMES[:2]:
        store = saved(tmp_path, name)
        (tmp_path / name / STATE).write_bytes(b"[]")
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    with pytest.raises(NoValidCheckpoint, match="Nothing was changed") as caught:
        newest(store)
    assert caught.value.exit_code == 4
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_leftovers_are_ignored_and_cleaned(tmp_path: Path) -> None:
    store = saved(tmp_path, NAMES[0])
    (tmp_path / ".tmp-000000000009-00").mkdir()
    (tmp_path / ".tmp-000000000009-00" / "weights").write_bytes(b"half")
    (tmp_path / "shared" / ".tmp-rollout").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    assert newest(store)[0] == NAMES[0]
    assert {p.name for p in tmp_path.iterdir()} == {NAMES[0], "shared", "notes.txt"}
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "shared/../x", "a/b", "", ".hidden", "x\0y", "notes.txt"]
)
def test_a_manifest_names_known_files_only(tmp_path: Path, name: str) -> None:
    store = saved(tmp_path, NAMES[0])
    manifest = tmp_path / NAMES[0] / "manifest.json"
    plain = json.loads(manifest.read_text())
    plain["files"][name] = {"size": 1, "sha256": "0" * 64}
    manifest.write_bytes(sealed(plain))
    with pytest.raises(Damaged, match="not a checkpoint's file"):
        store.load(tmp_path / NAMES[0])


def test_a_manifest_with_one_bit_changed_is_damage(tmp_path: Path) -> None:
    """Wherever it is: a version or a setting that still reads well is another manifest too."""
    store = saved(tmp_path, NAMES[0])
    manifest = tmp_path / NAMES[0] / "manifest.json"
    good = manifest.read_bytes()
    for place in range(len(good)):
        for bit in range(8):
            manifest.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
            with pytest.raises(Damaged):
                store.load(tmp_path / NAMES[0])
    manifest.write_bytes(good)
    assert store.load(tmp_path / NAMES[0]).name == NAMES[0]


def test_a_manifest_of_an_older_release_has_no_hash_of_itself(tmp_path: Path) -> None:
    store = saved(tmp_path, NAMES[0])
    manifest = tmp_path / NAMES[0] / "manifest.json"
    plain = json.loads(manifest.read_bytes())
    del plain["sha256"]
    manifest.write_text(json.dumps(plain))
    with pytest.raises(Damaged, match="its manifest does not have the hash that it names"):
        store.load(tmp_path / NAMES[0])
    manifest.write_text(json.dumps(plain | {"schema": 3}))
    assert store.load(tmp_path / NAMES[0]).name == NAMES[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", 3), ("config", None), ("phase_end", "yes"), ("processes", 0), ("versions", []), ("settings", "x"),
        ("files", []), ("files", {STATE: 3}), ("files", {STATE: {"size": -1, "sha256": "0" * 64}}),
        ("files", {STATE: {"size": 10**400, "sha256": "0" * 64}}), ("files", {STATE: {"size": 1, "sha256": "/"}}),
    ],
)  # fmt: skip
def test_odd_fields_of_a_manifest_are_damage(tmp_path: Path, field: str, value: object) -> None:
    store = saved(tmp_path, NAMES[0])
    manifest = tmp_path / NAMES[0] / "manifest.json"
    manifest.write_bytes(sealed(json.loads(manifest.read_text()) | {field: value}))
    with pytest.raises(Damaged, match=r"manifest has the wrong form|manifest cannot be read"):
        store.load(tmp_path / NAMES[0])


def test_a_checkpoint_larger_than_its_run_can_make_is_not_read(tmp_path: Path) -> None:
    """The sum counts, before a byte is read: sparse files cost the attacker nothing."""
    saved(tmp_path, NAMES[0], shared={A: b"frames", B: b"kept"})
    own = len(NAMES[0]) + len("{}")
    with pytest.raises(Damaged, match=f"{own + 10} bytes, more than a run"):
        CheckpointStore(tmp_path, most=own + 9).load(tmp_path / NAMES[0])
    assert CheckpointStore(tmp_path, most=own + 10).load(tmp_path / NAMES[0]).files[f"shared/{B}"] == b"kept"
    assert set(CheckpointStore(tmp_path, most=own).load(tmp_path / NAMES[0], shared=False).files) == {WEIGHTS, STATE}
    assert set(CheckpointStore(tmp_path, most=2).load(tmp_path / NAMES[0], only=(STATE,)).files) == {STATE}


def test_what_cannot_be_removed_is_left_and_said_once(tmp_path: Path) -> None:
    """A folder such as network storage makes fails no save."""
    saved(tmp_path, NAMES[0], shared={A: b"1"})
    (tmp_path / "shared" / ".snapshot").mkdir()
    warnings: list[str] = []
    store = CheckpointStore(tmp_path, warn=warnings.append)
    for name in NAMES[1:4]:
        store.save(name, {STATE: b"{}"}, {}, ABOUT)
    assert store.names() == NAMES[2:4]
    assert [p.name for p in (tmp_path / "shared").iterdir()] == [".snapshot"]
    assert len(warnings) == 1
    assert ".snapshot is not part of any checkpoint" in warnings[0]


def test_a_file_that_cannot_be_read_now_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files must not cost a checkpoint; a disk that cannot read a block may."""
    for name in NAMES[:2]:
        store = saved(tmp_path, name)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    read = checkpoint.read_regular

    def failing(number: int) -> Callable[[Path, int], bytes]:
        def fails(path: Path, most: int) -> bytes:
            if path.name == WEIGHTS and path.parent.name == NAMES[1]:
                raise OSError(number, os.strerror(number))
            return read(path, most)

        return fails

    monkeypatch.setattr(checkpoint, "read_regular", failing(errno.EMFILE))
    with pytest.raises(StorageFailed, match="nothing was changed"):
        newest(store)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
    monkeypatch.setattr(checkpoint, "read_regular", failing(errno.EIO))
    assert newest(store)[0] == NAMES[0]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
def test_odd_things_under_the_names_of_leftovers_are_removed(tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    root = tmp_path / "c"
    for name in NAMES[:2]:
        store = saved(root, name)
    for name in (f"damaged-{NAMES[1]}", f".tmp-{NAMES[2]}"):
        match kind:
            case "link":
                (root / name).symlink_to(elsewhere)
            case "file":
                (root / name).write_text("x")
            case "pipe":
                os.mkfifo(root / name)
    (root / NAMES[1] / STATE).write_text("[]")
    assert newest(store)[0] == NAMES[0]
    assert newest(saved(root, NAMES[2]))[0] == NAMES[2]
    assert (elsewhere / "mine").read_text() == "mine"
    assert all(p.is_dir() and not p.is_symlink() for p in root.iterdir())


def test_a_checkpoint_that_cannot_be_read_back_now_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OSError, which the run survives; the checkpoint is there all the same."""
    store = saved(tmp_path, NAMES[0])

    def fails(path: Path, most: int) -> bytes:
        raise OSError(errno.ESTALE, "stale")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "read_regular", fails)
        with pytest.raises(OSError, match="stale"):
            store.save(NAMES[1], {STATE: b"{}"}, {}, ABOUT)
    assert store.names() == NAMES[:2]
    assert newest(store)[0] == NAMES[1]


@pytest.mark.parametrize("kind", ["link", "file"])
@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/shared", "milestones", "tb", "analysis", "wandb"])
def test_a_new_run_takes_no_link_and_no_file_in_place_of_a_folder(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere") if kind == "link" else place.write_text("mine")
    with pytest.raises(BadInput, match=f"{name} is a link or a file"):
        RunDirectory(tmp_path).create()
    assert place.is_symlink() or place.read_text() == "mine"


def test_a_new_run_removes_no_checkpoints_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / "checkpoints" / "best" / "model.pt").write_text("mine")
    with pytest.raises(BadInput, match=r"best already exists, from something else"):
        RunDirectory(tmp_path).check_free()
    assert (tmp_path / "checkpoints" / "best" / "model.pt").exists()


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/shared/model.safetensors", "checkpoints/.tmp-mine/a", "checkpoints/000000000000/state.json",
        "checkpoints/000000000000-00.000.000000-00000/model.pt", "checkpoints/000000000000.pt",
        "checkpoints/000000000000-00.000.000000-00000/state.json/thesis.tex", "curves.png",
        "checkpoints/damaged-000000000512-00.000.000000-00002/weights.safetensors", "milestones/000000000128.json",
        "replay.mp4", "analysis/values.json", "checkpoints/damaged-000000000000/state.json",
    ],
)  # fmt: skip
def test_a_new_run_takes_no_place_of_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match=r"already exists, from .*something else; choose another"):
        RunDirectory(tmp_path).check_free()
    assert (tmp_path / name).read_text() == "mine"


def test_a_new_run_begins_where_one_was_killed_at_its_start(tmp_path: Path) -> None:
    first = "000000000000-00.000.000000-00000"
    left = (f".tmp-{first}/weights.safetensors", f"{first}/.tmp-state.json", f"damaged-{first}/collector.rank1.zst")
    for name in left:
        (tmp_path / "checkpoints" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoints" / name).write_text("")
    for empty in ("milestones", "analysis", "checkpoints/shared"):
        (tmp_path / empty).mkdir()
    RunDirectory(tmp_path).create()
    assert not [*(tmp_path / "checkpoints").iterdir()]


def test_a_link_to_a_checkpoint_is_none(tmp_path: Path) -> None:
    store = saved(tmp_path / "a", NAMES[0])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / NAMES[0]).symlink_to(tmp_path / "a" / NAMES[0])
    assert store.names() == [NAMES[0]]
    assert CheckpointStore(tmp_path / "b").names() == []


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    store = saved(tmp_path / "c", NAMES[0])
    file = tmp_path / "c" / NAMES[0] / WEIGHTS
    shutil.copy(file, tmp_path / "elsewhere")
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged):
        store.load(tmp_path / "c" / NAMES[0])


def test_what_accept_refuses_is_treated_as_damage(tmp_path: Path) -> None:
    for name in NAMES[:2]:
        store = saved(tmp_path, name)

    taken: list[str] = []

    def accept(checkpoint: Checkpoint) -> None:
        if checkpoint.name == NAMES[1]:
            raise Damaged("it is of another run")
        taken.append(checkpoint.name)

    warnings: list[str] = []
    store.newest_valid(accept, warnings.append)
    assert taken == [NAMES[0]]
    assert "another run" in warnings[0]


def test_no_unsafe_loader_anywhere() -> None:
    import re

    unsafe = re.compile(
        r"import pickle|torch\.load\(|yaml\.load\(|shell=True|allow_pickle=True|(?<![\w.])(eval|exec)\("
    )
    for path in (Path(__file__).parents[2] / "dcpg").rglob("*.py"):
        assert not unsafe.search(path.read_text()), path


def test_a_run_killed_before_it_began_can_be_started_again(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", "000000000000-00.000.000000-00000")
    RunDirectory(tmp_path).create()
    assert CheckpointStore(tmp_path / "checkpoints").names() == []
    saved(tmp_path / "checkpoints", NAMES[0])
    with pytest.raises(BadInput, match="already holds a run"):
        RunDirectory(tmp_path).create()
    assert CheckpointStore(tmp_path / "checkpoints").names() == NAMES[:1]


def test_refusing_a_run_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    directory = RunDirectory(tmp_path)
    directory.prepare()
    directory.lock.acquire()
    directory.create()
    directory.undo()
    directory.lock.release()
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    fresh = RunDirectory(tmp_path / "new")
    fresh.prepare()
    fresh.create()
    fresh.undo()
    assert not fresh.path.exists()


def test_rows_of_something_else_are_neither_taken_over_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    directory = RunDirectory(tmp_path)
    directory.prepare()
    with pytest.raises(BadInput, match=r"metrics\.jsonl already exists"):
        directory.create()
    directory.undo()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("metrics.jsonl", "mine\n")]


def test_checkpoints_are_in_the_order_of_the_loop_whatever_their_digits(tmp_path: Path) -> None:
    names = [f"{64:012d}-01.{epoch:03d}.000000-00001" for epoch in (999, 1000, 1001)]
    for name in names:
        store = saved(tmp_path, name)
    assert store.names() == names[1:]
    assert newest(store)[0] == names[-1]


def test_a_read_that_fails_once_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES[:2]:
        store = saved(tmp_path, name)
    seen: list[Path] = []

    def flaky(path: Path, most: int) -> bytes:
        seen.append(path)
        if seen.count(path) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path, most)

    read = checkpoint.read_regular
    monkeypatch.setattr(checkpoint, "read_regular", flaky)
    assert newest(store) == (NAMES[1], [])
    store.prune()
    assert store.names() == NAMES[:2]


def test_a_state_that_no_run_has_is_refused_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved(tmp_path, NAMES[0])
    store.save(NAMES[1], {WEIGHTS: b"", STATE: b'{"a": 1}'}, {}, ABOUT | {"phase_end": False})
    monkeypatch.setattr(checkpoint, "MOST_STATE", 7)
    assert newest(store)[0] == NAMES[0]
