"""Faults 29 to 33: checkpoints of something else, and checkpoints that somebody made to do harm."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from safetensors.torch import load, save

from tests.faults import driver
from tests.faults.driver import COMPARED, Driver, copy, each, listing, names, newest, record, rewrite, settings

pytestmark = pytest.mark.faults

LATER = "000000009999-00.000.000000-00009"


def refused(runs: Driver, reference: Callable[..., Path], out: Path, *told: str) -> None:
    """The newest checkpoint is refused and told; the one before it gives the right result."""
    name = newest(out).name
    ended = runs.recovers(out, reference())
    text = ended.out + ended.err
    assert name in text
    assert all(word in text for word in told), text


def alone(runs: Driver, out: Path) -> None:
    """As the only checkpoint it is refused with exit 4, alive and with nothing written."""
    driver.only(out, names(out)[-1])
    before = listing(out)
    ended = runs.resume(out)
    assert ended.code == 4, str(ended)
    assert "Traceback" not in ended.err
    assert listing(out) == before


def split(data: bytes) -> list[bytes]:
    """The byte strings of a list file."""
    count = struct.unpack_from("<q", data)[0]
    lengths = struct.unpack_from(f"<{count}q", data, 8)
    ends = 8 * (count + 1) + np.cumsum(lengths)
    return [data[e - n : e] for e, n in zip(ends.tolist(), lengths, strict=True)]


def joined(parts: list[bytes]) -> bytes:
    """The other way."""
    return struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)) + b"".join(parts)


def envs(checkpoint: Path) -> list[bytes]:
    """The states of a checkpoint's environments."""
    return split(zstandard.ZstdDecompressor().decompress((checkpoint / "envs.zst").read_bytes()))


def set_envs(checkpoint: Path, parts: list[bytes]) -> None:
    rewrite(checkpoint, "envs.zst", zstandard.ZstdCompressor().compress(joined(parts)))


# -- of something else


@pytest.fixture(scope="session")
def others(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of another method, configuration and game."""
    folder = tmp_path_factory.mktemp("others")
    common = ["--preset", "tiny", "--steps", "128", *settings(*driver.SMALL, "algorithm.E_aux=2")]
    wanted = {
        "dcpg": ["dcpg", "--game", "starpilot", "--seed", "1"],
        "seed": ["ddcpg", "--game", "starpilot", "--seed", "2"],
        "coinrun": ["ddcpg", "--game", "coinrun", "--seed", "1"],
        "wide": ["ddcpg", "--game", "starpilot", "--seed", "1", *settings("network.features=48")],
    }

    def work(name: str) -> None:
        ended = runs.run(["train", *wanted[name], *common, "--out", str(folder / name)])
        assert ended.code == 0, str(ended)

    each(wanted, work)
    return {name: newest(folder / name) for name in wanted}


def test_checkpoints_of_something_else(
    runs: Driver, reference: Callable[..., Path], others: dict[str, Path], stopped: Path, tmp_path: Path
) -> None:
    """Another method, configuration, game, network or schema: refused with what differs."""

    def work(name: str) -> None:
        out = copy(stopped, tmp_path / name)
        later = out / "checkpoints" / LATER
        if name == "schema":
            copy(newest(out), later)
            rewrite(later, "", b"", schema=99)
        else:
            copy(others[name], later)
        single = copy(out, tmp_path / f"{name}-alone")
        refused(runs, reference, out, {"schema": "99", "dcpg": "dcpg"}.get(name, ""))
        alone(runs, single)

    jobs = [*others, "schema"]
    each(jobs, work, "29 checkpoint of something else", times=2)


def test_files_of_something_else(
    runs: Driver, reference: Callable[..., Path], others: dict[str, Path], stopped: Path, tmp_path: Path
) -> None:
    """One file of another run in a checkpoint whose manifest says all is well."""
    jobs = [("wide", "weights.safetensors"), ("wide", "adam.safetensors"), ("dcpg", "weights.safetensors")]

    def work(job: tuple[str, str]) -> None:
        name, file = job
        out = copy(stopped, tmp_path / f"{name}-{file}")
        rewrite(newest(out), file, (others[name] / file).read_bytes())
        single = copy(out, tmp_path / f"{name}-{file}-alone")
        refused(runs, reference, out)
        alone(runs, single)

    each(jobs, work, "29 file of something else", times=2)


def test_configuration_of_another_schema(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    out = copy(stopped, tmp_path / "run")
    plain = json.loads((out / "config.json").read_bytes())
    (out / "config.json").write_text(json.dumps(plain | {"schema": 99}))
    before = listing(out)
    ended = runs.resume(out)
    assert ended.code == 2, str(ended)
    assert "99" in ended.err
    assert listing(out) == before
    record("29 configuration of another schema", 1, 1)


def test_environment_states(
    runs: Driver, reference: Callable[..., Path], others: dict[str, Path], stopped: Path, tmp_path: Path
) -> None:
    """Procgen ends the process on a state that it cannot read, so every one is looked at first."""
    good, foreign = envs(newest(stopped)), envs(others["coinrun"])
    first, rest = good[0], good[1:]
    wrong = {
        "another game": [*foreign[:-1], good[-1]],
        "one of another game": [first, foreign[0], *good[2:]],
        "half": [first[: len(first) // 2], *rest],
        "less one byte": [first[:-1], *rest],
        "more": [first + b"\0" * 64, *rest],
        "empty": [b"", *rest],
        "too few": good[1:],
        "too many": [first, *good],
        "none": [],
        "name of a huge length": [first[:4] + struct.pack("<i", 2**31 - 1) + first[8:], *rest],
    }

    def work(name: str) -> None:
        out = copy(stopped, tmp_path / name.replace(" ", "-"))
        set_envs(newest(out), wrong[name])
        single = copy(out, tmp_path / f"{name.replace(' ', '-')}-alone")
        refused(runs, reference, out)
        alone(runs, single)

    each(wrong, work, "30 environment states that are wrong", times=2)


# -- made to do harm


class Canary:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_pickles_are_not_opened(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """In place of each file, with a matching hash; also as torch.save writes them."""
    shared = sorted(p.name for p in (stopped / "checkpoints" / "shared").iterdir())
    jobs = [*COMPARED, *(f"shared/{name}" for name in shared)]

    def work(file: str) -> None:
        where = tmp_path / file.replace("/", "-")
        where.mkdir()
        torch.save({"x": Canary(where / "canary")}, where / "made.pt")
        for kind, data in (("pickle", pickle.dumps(Canary(where / "canary"))), ("torch", _bytes(where / "made.pt"))):
            out = copy(stopped, where / kind)
            rewrite(newest(out), file, data)
            if file.startswith("shared/"):
                ended = runs.recovers(out, reference())
                assert newest(stopped).name in ended.out + ended.err
            else:
                refused(runs, reference, out)
            assert not (where / "canary").exists()

    each(jobs, work, "31 pickle in place of a file", times=2)
    canary = tmp_path / "works"
    pickle.loads(pickle.dumps(Canary(canary)))
    assert canary.exists()  # the canary would have sung


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def test_a_pickle_named_as_a_checkpoint(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    out = copy(stopped, tmp_path / "run")
    (out / "checkpoints" / LATER).write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    manifest = out / "checkpoints" / LATER.replace("9999", "9998")
    manifest.mkdir()
    (manifest / "manifest.json").write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    (out / "checkpoints" / "latest.pt").write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    runs.recovers(out, reference())
    assert not (tmp_path / "canary").exists()
    record("31 pickle named as a checkpoint", 3, 3)


def hostile_tensors() -> dict[str, bytes]:
    """Safetensors that lie."""

    def file(header: bytes, size: int | None = None, data: bytes = b"") -> bytes:
        return struct.pack("<Q", len(header) if size is None else size) + header + data

    many = {f"t{i}": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]} for i in range(4)}
    return {
        "header of 2^63 bytes": file(b"{}", 2**63),
        "header of 100 GB": file(b"{}", 10**11),
        "no header": b"",
        "seven bytes": b"\1" * 7,
        "not JSON": file(b"[" * 1000),
        "deep": file(b'{"a":' * 20000),
        "shapes of terabytes": file(json.dumps(many).encode(), data=bytes(64)),
        "negative": file(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', data=bytes(4)),
        "overlap": file(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            data=bytes(4),
        ),
        "nothing in it": save({}),
        "zeros": bytes(4096),
    }


def test_hostile_safetensors(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    made = hostile_tensors()
    files = ("weights.safetensors", "adam.safetensors", "shared/old-policy-00000003.safetensors")
    jobs = [(name, files[i % 3]) for i, name in enumerate(made)]

    def work(job: tuple[str, str]) -> None:
        name, file = job
        out = copy(stopped, tmp_path / name.replace(" ", "-"))
        assert file in json.loads((newest(out) / "manifest.json").read_bytes())["files"]
        rewrite(newest(out), file, made[name])
        ended = runs.recovers(out, reference())
        assert newest(stopped).name in ended.out + ended.err
        assert ended.peak < 2**21  # KiB

    each(jobs, work, "32 hostile safetensors")


def test_adam_moments_must_be_those_of_the_run(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """Fewer moments than the run had would start Adam anew without a word."""
    out = copy(stopped, tmp_path / "run")
    file = newest(out) / "adam.safetensors"
    tensors = load(file.read_bytes())
    lost = sorted(tensors)[0].rsplit("/", 1)[0]
    rewrite(newest(out), file.name, save({k: v for k, v in tensors.items() if not k.startswith(lost)}))
    refused(runs, reference, out)
    record("32 Adam moments are missing", 1, 1)


def test_shared_tensors_of_other_shapes(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """Both checkpoints that name the file are refused, and the run goes back to the phase's start."""
    jobs = ["rollout-00000002.safetensors", "rollout-00000003.safetensors", "old-policy-00000003.safetensors"]

    def work(file: str) -> None:
        out = copy(stopped, tmp_path / file)
        path = out / "checkpoints" / "shared" / file
        data = save({k: v[:-1].contiguous() for k, v in load(path.read_bytes()).items()})
        for name in names(out)[1:]:
            rewrite(out / "checkpoints" / name, f"shared/{file}", data)
        runs.recovers(out, reference())

    each(jobs, work, "32 shared tensors of other shapes")


def test_compressed_bombs(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """A few kilobytes that open into gigabytes: refused before they are opened."""
    size = 3 * 2**30
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=size)
    sized = b"".join([*(compressor.compress(bytes(2**26)) for _ in range(size >> 26)), compressor.flush()])
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    unsized = b"".join([*(compressor.compress(bytes(2**26)) for _ in range(size >> 26)), compressor.flush()])
    frames = "shared/rollout-00000003.frames"
    bombs = {
        "sized": ("envs.zst", sized),
        "unsized": ("envs.zst", unsized),
        "says 2^60": ("envs.zst", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + b"\1\0\0"),
        "frames": (frames, joined([sized] * 8)),
        "count": ("envs.zst", zstandard.ZstdCompressor().compress(struct.pack("<q", 2**40) + bytes(64))),
        "negative": ("envs.zst", zstandard.ZstdCompressor().compress(struct.pack("<3q", 2, -8, 8) + bytes(64))),
    }

    def work(name: str) -> None:
        file, data = bombs[name]
        out = copy(stopped, tmp_path / name.replace(" ", "-"))
        rewrite(newest(out), file, data)
        ended = runs.recovers(out, reference())
        assert newest(stopped).name in ended.out + ended.err
        assert ended.peak < 2**21, f"{ended.peak} KiB"

    each(bombs, work, "32 compressed bombs")


def test_strange_state(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """JSON that is not a run's state, with a matching hash."""
    good = json.loads((newest(stopped) / "state.json").read_bytes())
    made = {
        "list": b"[]",
        "deep": b"[" * 100_000,
        "text": json.dumps(good | {"cursor": "here"}).encode(),
        "no cursor": json.dumps({k: v for k, v in good.items() if k != "cursor"}).encode(),
        "cursor beyond": json.dumps(good | {"cursor": {**good["cursor"], "line": 99}}).encode(),
        "cursor before": json.dumps(good | {"cursor": {**good["cursor"], "epoch": -5}}).encode(),
        "sums of other lengths": json.dumps(
            good | {"sums": {k: {"steps": 1, "values": [0.0]} for k in good["sums"]}}
        ).encode(),
        "normaliser of other lengths": json.dumps(
            good | {"normaliser": {**good["normaliser"], "sums": [0.0]}}
        ).encode(),
        "rows below zero": json.dumps(good | {"rows": {"metrics": -1, "eval": -1}}).encode(),
        "a rollout that is not there": json.dumps(good | {"rollouts": [2, 3, 77]}).encode(),
    }

    def work(name: str) -> None:
        out = copy(stopped, tmp_path / name.replace(" ", "-"))
        rewrite(newest(out), "state.json", made[name])
        refused(runs, reference, out)

    each(made, work, "32 state that is not a run's")


def test_manifests_that_point_elsewhere(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """Names with .., absolute ones, folders, a symbolic link: refused; nothing outside is read, changed or removed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    entry = {"size": 9, "sha256": "0" * 64}
    jobs = ["../../../outside/victim", str(outside / "victim"), "shared/../../victim", "shared/", "..", "a/b", "", "\0"]

    def work(name: str) -> None:
        out = copy(stopped, tmp_path / f"run{jobs.index(name)}")
        where = newest(out) / "manifest.json"
        manifest = json.loads(where.read_bytes())
        manifest["files"][name] = entry
        where.write_text(json.dumps(manifest))
        refused(runs, reference, out)

    before = listing(outside)
    each(jobs, work)
    linked = copy(stopped, tmp_path / "linked")
    weights = newest(linked) / "weights.safetensors"
    weights.rename(outside / "weights")
    weights.symlink_to(outside / "weights")
    refused(runs, reference, linked)
    (outside / "weights").unlink()
    assert listing(outside) == before
    record("33 manifests that point elsewhere", len(jobs) + 1, len(jobs) + 1)


@pytest.mark.parametrize("place", ["checkpoints/shared", "lock", ".tmp-metrics.jsonl", ".tmp-summary.json"])
def test_links_out_of_the_run(runs: Driver, stopped: Path, tmp_path: Path, place: str) -> None:
    """A run that somebody else made may hold symbolic links; what they point at stays as it is."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    out = copy(stopped, tmp_path / "run")
    at = out / place
    if place == "checkpoints/shared":
        for path in at.iterdir():
            path.rename(outside / path.name)
        at.rmdir()
        at.symlink_to(outside)
    else:
        at.unlink(missing_ok=True)
        at.symlink_to(outside / "victim")
    before = listing(outside)
    ended = runs.resume(out)
    assert ended.code in (0, 2, 4), str(ended)
    assert "Traceback" not in ended.err
    assert listing(outside) == before
    record(f"33 a link out of the run at {place}", 1, 1)


def test_a_checkpoint_that_is_a_link(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    """Pruning removes checkpoints; one that is a link is not followed."""
    out = copy(stopped, tmp_path / "run")
    outside = tmp_path / "outside"
    first = out / "checkpoints" / names(out)[0]
    first.rename(outside)
    first.symlink_to(outside)
    before = listing(outside)
    ended = runs.resume(out)
    assert ended.code == 0, str(ended)
    assert listing(outside) == before
    record("33 a checkpoint that is a link", 1, 1)
