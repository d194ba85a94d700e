"""Faults 29 to 33: checkpoints of something else, and checkpoints that somebody made to do harm."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from safetensors.torch import load, save

from dcpg.storage.checkpoint import sealed
from tests.faults import driver
from tests.faults.driver import COMPARED, Driver, copy, each, envs, joined, listing, names, newest, record, rewrite

pytestmark = pytest.mark.faults

LATER = "000000009999-00.000.000000-00009"
GOING_BACK = 8  # of many refusals of one kind, those after which the checkpoint before is taken to the end


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


# -- of something else


@pytest.fixture(scope="session")
def others(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of another method, configuration and game."""
    folder = tmp_path_factory.mktemp("others")
    common = ["--preset", "tiny", "--steps", "128", *driver.settings(*driver.SMALL, "algorithm.E_aux=2")]
    wanted = {
        "dcpg": ["dcpg", "--game", "starpilot", "--seed", "1"],
        "seed": ["ddcpg", "--game", "starpilot", "--seed", "2"],
        "coinrun": ["ddcpg", "--game", "coinrun", "--seed", "1"],
        "wide": ["ddcpg", "--game", "starpilot", "--seed", "1", *driver.settings("network.features=48")],
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
        "another game": foreign,
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
        driver.set_envs(newest(out), wrong[name])
        single = copy(out, tmp_path / f"{name.replace(' ', '-')}-alone")
        refused(runs, reference, out)
        alone(runs, single)

    each(wrong, work, "30 environment states that are wrong", times=2)


# -- the memory of the level sampler and of the bandit


@pytest.fixture(scope="session")
def undisturbed(reference: Callable[..., Path]) -> Callable[..., Path]:
    """The reference of the run that remembers."""
    return lambda: reference(more=driver.BOTH)


def spoilt(good: dict[str, Any], **lists: Any) -> dict[str, Any]:
    """A state whose named lists have this first entry."""
    return good | {key: [value, *good[key][1:]] for key, value in lists.items()}


def unlike(good: dict[str, Any]) -> dict[str, bytes]:
    """JSON that is not of this shape at all, or hardly JSON."""
    made = {f"no {key}": {k: v for k, v in good.items() if k != key} for key in good}
    made |= {f"{key} is null": good | {key: None} for key in good if key != "arm"}
    made |= {f"{key} is text": good | {key: "1"} for key in good}
    made |= {"null": None, "list": [0] * 8, "text": "x", "number": 1}  # type: ignore[dict-item]
    return {name: json.dumps(state).encode() for name, state in made.items()}


def sampler_states(good: dict[str, Any]) -> dict[str, bytes]:
    """States that the level sampler of a run cannot have."""
    scores, staleness = good["scores"], good["staleness"]
    made = {
        "fewer levels": good | {"scores": scores[:-1], "staleness": staleness[:-1]},
        "more levels": good | {"scores": [*scores, 0.5], "staleness": [*staleness, 5]},
        "fewer scores": good | {"scores": scores[:-1]},
        "infinite score": spoilt(good, scores=float("inf")),
        "score NaN": spoilt(good, scores=float("nan")),
        "negative score": spoilt(good, scores=-0.5),
        "score of text": spoilt(good, scores="high"),
        "score of digits": spoilt(good, scores="0.5"),
        "score of 400 digits": spoilt(good, scores=10**400),
        "scores by name": good | {"scores": {str(i): s for i, s in enumerate(scores)}},
        "negative staleness": spoilt(good, staleness=-1),
        "infinite staleness": spoilt(good, staleness=float("inf")),
        "half a staleness": spoilt(good, staleness=1.5),
        "staleness of 30 digits": spoilt(good, staleness=10**30),
        "staleness whose sum overflows": good | {"staleness": [2**62] * len(staleness)},
        "more staleness than choices": spoilt(good, staleness=good["choices"] + 1),
        "nothing was chosen last": good | {"staleness": [n + 1 for n in staleness]},
        "negative choices": good | {"choices": -1},
        "infinite choices": good | {"choices": float("inf")},
        "fewer choices than environments": good | {"choices": 3},
    }
    return unlike(good) | {name: json.dumps(state).encode() for name, state in made.items()}


def bandit_states(good: dict[str, Any]) -> dict[str, bytes]:
    """States that the bandit of a run cannot have."""
    made = {
        "fewer arms": good | {"counts": good["counts"][:-1], "rewards": good["rewards"][:-1]},
        "more arms": good | {"counts": [*good["counts"], 1], "rewards": [*good["rewards"], []]},
        "arm out of range": good | {"arm": 8},
        "arm below zero": good | {"arm": -1},
        "arm by name": good | {"arm": "crop"},
        "half an arm": good | {"arm": 1.5},
        "infinite arm": good | {"arm": float("inf")},
        "no arm after rewards": good | {"arm": None},
        "count of zero": spoilt(good, counts=0),
        "negative count": spoilt(good, counts=-3),
        "infinite count": spoilt(good, counts=float("inf")),
        "half a count": spoilt(good, counts=good["counts"][0] + 0.5),
        "count of 400 digits": spoilt(good, counts=10**400),
        "total of zero": good | {"total": 0},
        "infinite total": good | {"total": float("inf")},
        "total that the counts do not give": good | {"total": good["total"] + 5},
        "infinite reward": spoilt(good, rewards=[float("inf")]),
        "reward NaN": spoilt(good, rewards=[float("nan")]),
        "reward of text": spoilt(good, rewards=["good"]),
        "rewards of digits": spoilt(good, rewards="1"),
        "more rewards than choices": spoilt(good, rewards=[0.5] * 9),
        "more rewards than the window": spoilt(good, rewards=[0.5] * 99),
        "rewards of no list": spoilt(good, rewards=None),
    }
    return unlike(good) | {name: json.dumps(state).encode() for name, state in made.items()}


def wrong_memories(
    runs: Driver,
    undisturbed: Callable[..., Path],
    run: Path,
    folder: Path,
    part: str,
    made: dict[str, bytes],
    what: str,
) -> None:
    """Each state is refused as the only one; for some of them the checkpoint before is used."""

    def spoil(name: str, place: str) -> Path:
        out = copy(run, folder / f"{place}-{name.replace(' ', '-')}")
        driver.set_memory(newest(out), part, json.loads(made[name]))
        return out

    each(made, lambda name: alone(runs, spoil(name, "alone")), what)
    some = driver.spread(list(made), GOING_BACK)
    each(some, lambda name: refused(runs, undisturbed, spoil(name, "newest")), f"{what}, and one before")


def test_level_sampler_states(
    runs: Driver, undisturbed: Callable[..., Path], remembering: Path, tmp_path: Path
) -> None:
    """Another number of levels, numbers that cannot be, no JSON: refused, never a traceback or a strange replay."""
    made = sampler_states(driver.memory(newest(remembering), "levels"))
    wrong_memories(runs, undisturbed, remembering, tmp_path, "levels", made, "30 level sampler states that are wrong")


def test_bandit_states(runs: Driver, undisturbed: Callable[..., Path], remembering: Path, tmp_path: Path) -> None:
    """Other arms, an arm that is not there, counts and rewards that cannot be: refused in the same way."""
    made = bandit_states(driver.memory(newest(remembering), "augmentation"))
    wrong_memories(runs, undisturbed, remembering, tmp_path, "augmentation", made, "32 bandit states that are wrong")


def test_environments_on_levels_that_are_not_the_samplers(
    runs: Driver, undisturbed: Callable[..., Path], remembering: Path, tmp_path: Path
) -> None:
    """States of the right game, but of levels that the sampler does not have and could not score."""
    elsewhere = tmp_path / "elsewhere"
    arguments = ["train", "ppo", "--game", "bossfight", "--preset", "tiny", "--steps", "128", "--out", str(elsewhere)]
    assert runs.run([*arguments, *driver.settings(*driver.SMALL, "levels.start=100")]).code == 0
    out = copy(remembering, tmp_path / "run")
    driver.set_envs(newest(out), envs(newest(elsewhere)))
    single = copy(out, tmp_path / "alone")
    alone(runs, single)
    refused(runs, undisturbed, out)
    record("30 environments on levels that are not the sampler's", 2, 2)


def test_the_driver_sees_another_memory(
    runs: Driver, undisturbed: Callable[..., Path], remembering: Path, tmp_path: Path
) -> None:
    """A memory that could be right and is not changes what comes after it: a comparison that passes says something."""
    first = names(remembering)[0]
    for name in ("levels", "arms"):
        out = copy(remembering, tmp_path / name)
        driver.only(out, first)
        if name == "levels":
            levels = driver.memory(newest(out), "levels")
            levels["scores"].reverse()
            driver.set_memory(newest(out), "levels", levels)
        else:
            bandit = driver.memory(newest(out), "augmentation")
            bandit["rewards"][0] = [99.0]
            driver.set_memory(newest(out), "augmentation", bandit)
        assert runs.resume(out).code == 0
        assert "metrics.jsonl" in driver.differences(out, undisturbed())


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
    jobs = ["kept-00000002.safetensors", "rollout-00000003.safetensors", "old-policy-00000003.safetensors"]

    def work(file: str) -> None:
        out = copy(stopped, tmp_path / file)
        path = out / "checkpoints" / "shared" / file
        data = save({k: v[:-1].contiguous() for k, v in load(path.read_bytes()).items()})
        for name in names(out)[1:]:
            rewrite(out / "checkpoints" / name, f"shared/{file}", data)
        runs.recovers(out, reference())

    each(jobs, work, "32 shared tensors of other shapes")


NEEDED = {
    "idaac": ("policy 11", ["step_counts", "advantages", "values/value", "returns/value"]),
    "separate-dcpg": ("auxiliary 3", ["returns/delayed_value", "returns/value"]),
    "dcpg+fi": ("auxiliary 3", ["returns/value"]),
}


@pytest.mark.parametrize("method", NEEDED)
def test_shared_tensors_of_other_names_and_types(
    runs: Driver, reference: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    """A rollout without a tensor that the line needs, with actions of another type, or with actions that are not."""
    stopped, (place, needed) = tmp_path / "stopped", NEEDED[method]
    assert runs.train(stopped, f"at {place} SIGTERM", method=method, steps=256).code == 75
    file = "shared/rollout-00000001.safetensors"
    good = load((stopped / "checkpoints" / file).read_bytes())
    wrong = {f"without {name.replace('/', ' ')}": {k: v for k, v in good.items() if k != name} for name in needed}
    if method != "separate-dcpg":  # it keeps no actions
        wrong["actions of another type"] = good | {"actions": good["actions"].double()}
        wrong["actions that are not"] = good | {"actions": good["actions"] + 15}

    def work(name: str) -> None:
        out = copy(stopped, tmp_path / name.replace(" ", "-"))
        rewrite(newest(out), file, save(wrong[name]))
        alone(runs, copy(out, tmp_path / f"{name.replace(' ', '-')}-alone"))
        runs.recovers(out, reference(method, 256))

    each(wrong, work, f"32 shared tensors of other names and types, {method}", times=2)


def test_actions_in_b_that_are_not(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """Of a rollout that only B keeps: both checkpoints that name it are refused."""
    out, file = copy(stopped, tmp_path / "run"), "kept-00000002.safetensors"
    tensors = load((out / "checkpoints" / "shared" / file).read_bytes())
    data = save(tensors | {"actions": tensors["actions"] + 15})
    for name in names(out)[1:]:
        rewrite(out / "checkpoints" / name, f"shared/{file}", data)
    runs.recovers(out, reference())
    record("32 actions in B that the environment does not have", 1, 1)


def test_compressed_bombs(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """A few kilobytes that open into gigabytes: refused before they are opened."""
    size = 3 * 2**30
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=size)
    sized = b"".join([*(compressor.compress(bytes(2**26)) for _ in range(size >> 26)), compressor.flush()])
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    unsized = b"".join([*(compressor.compress(bytes(2**26)) for _ in range(size >> 26)), compressor.flush()])
    frames = "shared/rollout-00000003.frames"
    bombs = {
        "sized": ("collector.zst", sized),
        "unsized": ("collector.zst", unsized),
        "says 2^60": ("collector.zst", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + b"\1\0\0"),
        "frames": (frames, joined([sized] * 8)),
        "count": ("collector.zst", zstandard.ZstdCompressor().compress(struct.pack("<q", 2**40) + bytes(64))),
        "negative": ("collector.zst", zstandard.ZstdCompressor().compress(struct.pack("<3q", 2, -8, 8) + bytes(64))),
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

    def with_part(part: str, **changes: Any) -> bytes:
        return json.dumps(good | {"parts": good["parts"] | {part: good["parts"][part] | changes}}).encode()

    loop, collector, adam = (good["parts"][name] for name in ("algorithm", "collector", "adam"))
    made = {
        "nothing": b"",
        "not JSON": b"\xff\0",
        "list": b"[]",
        "deep": b"[" * 100_000,
        "no parts": json.dumps({k: v for k, v in good.items() if k != "parts"}).encode(),
        "text": with_part("algorithm", cursor="here"),
        "no cursor": with_part("algorithm", cursor=None),
        "cursor beyond": with_part("algorithm", cursor={**loop["cursor"], "line": 99}),
        "cursor before": with_part("algorithm", cursor={**loop["cursor"], "epoch": -5}),
        "sums of other lengths": with_part("adam", sums={k: {"updates": 1, "values": [0.0]} for k in adam["sums"]}),
        "normaliser of other lengths": with_part("collector", normaliser={**collector["normaliser"], "sums": [0.0]}),
        "rows without end": json.dumps(good | {"rows": {"metrics": float("inf"), "eval": 0}}).encode(),
        "episodes without end": with_part(
            "collector", episodes={**collector["episodes"], "lengths": [float("inf")] * 8}
        ),
        "rows below zero": json.dumps(good | {"rows": {"metrics": -1, "eval": -1}}).encode(),
        "a rollout that is not there": with_part("algorithm", kept=[2, 3, 77]),
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
        where.write_bytes(sealed(manifest))
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
