"""The parts of a run as the files of a checkpoint, and back.

state.json              the plain state of every part, the steps and how many rows were written
weights.safetensors     the network
adam.safetensors        the moments of every Adam
collector.zst           the choosers and the environments; with several ranks, one file per rank
shared/...              rollouts and pi_old's outputs, which several checkpoints may use
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import safetensors
import zstandard
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from dcpg.core.state import Large, State, Stateful
from dcpg.errors import BadInput
from dcpg.machine.memory import memory_was_refused
from dcpg.ranks import Ranks
from dcpg.storage.checkpoint import MOST_STATE, Checkpoint, Damaged
from dcpg.storage.files import is_modest, parse_json

# errors from files of the right format with unexpected contents
STRANGE = (
    AssertionError, AttributeError, EOFError, IndexError, KeyError, NotImplementedError, OverflowError, RecursionError,
    TypeError, ValueError, safetensors.SafetensorError, zstandard.ZstdError,
)  # fmt: skip


def pack(
    parts: Mapping[str, Stateful], ranks: Ranks, most: int, **more: Any
) -> tuple[dict[str, bytes], dict[str, Callable[[], bytes]]]:
    """The files of a checkpoint: its own, and those it shares with others, which are made only when first written.

    `most` is the number of bytes that the states of environments may have.
    """
    own, shared, plain = dict[str, bytes](), dict[str, Callable[[], bytes]](), dict[str, Any]()
    for name, part in parts.items():
        state = part.state()
        plain[name] = state.plain
        if state.tensors is not None and ranks.first:  # every rank holds the same
            own[f"{name}.safetensors"] = save_tensors(dict(state.tensors))
        if state.blobs is not None:
            blobs = [_plain(state.own), *state.blobs]
            data = joined(blobs)
            if len(data) > most:  # it could not be read again
                raise BadInput(
                    f"The states of these environments have {len(data):,} bytes, more than the {most:,} that a "
                    "checkpoint takes; make what get_state returns smaller, or leave it out."
                )
            own[f"{name}{ranks.suffix}.zst"] = zstandard.ZstdCompressor(level=1).compress(data)
        shared |= {_of_rank(key, ranks): partial(_saved, make) for key, make in state.shared.items()}
    if ranks.first:
        own["state.json"] = _plain({**more, "parts": plain})
    return own, shared


def _plain(state: Any) -> bytes:
    """JSON that `read_plain` takes; a checkpoint that could not be read again is not written."""
    data = json.dumps(state, allow_nan=False).encode()
    if len(data) > MOST_STATE or not is_modest(data):
        raise BadInput(
            f"The state of this run beside its tensors, {len(data):,} bytes, is larger than a checkpoint takes, mostly "
            "because of the episodes that ended in one rollout; lower rollout_length or env.num_envs."
        )
    return data


def unpack(checkpoint: Checkpoint, parts: Mapping[str, Stateful], ranks: Ranks, most: int) -> dict[str, State]:
    """The state of every part. Shared files are read on demand, and then held by the part alone."""
    files, plain = checkpoint.files, read_plain(checkpoint)["parts"]
    shared = {
        key.removeprefix("shared/").replace(f"{ranks.suffix}.", "."): partial(_loaded, files, key)
        for key in files
        if key.startswith("shared/")
    }
    states = {}
    for name in parts:
        tensors, packed = files.get(f"{name}.safetensors"), files.get(f"{name}{ranks.suffix}.zst")
        own, blobs = None, None
        if packed is not None:
            first, *blobs = opened(packed, most)
            if len(first) > MOST_STATE:
                raise ValueError(f"the plain state of {name} has {len(first):,} bytes")
            own = parse_json(first)
        states[name] = State(plain[name], read_tensors(tensors) if tensors is not None else None, own, blobs, shared)
    return states


def read_plain(checkpoint: Checkpoint) -> dict[str, Any]:
    """The contents of state.json, in the current layout."""
    try:
        plain: dict[str, Any] = parse_json(checkpoint.files["state.json"])
        if checkpoint.manifest.schema == 1:
            plain = _plain_from_schema_1(plain)
        return plain if checkpoint.manifest.schema > 2 else _from_schema_2(plain)
    except (*STRANGE,) as error:
        raise Damaged(f"it does not hold a run's state ({type(error).__name__}: {error})") from None


def _of_rank(name: str, ranks: Ranks) -> str:
    stem, dot, ending = name.rpartition(".")
    return f"{stem}{ranks.suffix}{dot}{ending}"


def _saved(make: Callable[[], Large]) -> bytes:
    large = make()
    return joined(large) if isinstance(large, list) else save_tensors(dict(large))


def _loaded(files: dict[str, bytes], key: str) -> Large:
    data = files.pop(key)
    return split(data) if key.endswith(".frames") else read_tensors(data)


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file; ValueError if it is none, or has shapes and types that torch does not take."""
    try:
        return load_tensors(data)
    except (RuntimeError, KeyError, TypeError, ValueError, OverflowError, safetensors.SafetensorError) as error:
        if memory_was_refused(error):
            raise
        raise ValueError(f"it is not a safetensors file that can be used ({type(error).__name__}: {error})") from None


def opened(data: bytes, most: int) -> list[bytes]:
    """Decompress and split byte strings; more than `most` bytes are refused."""
    # zstd does not apply its own limit to a frame that declares its size, so check that size first
    if not 0 <= zstandard.frame_content_size(data) <= most:
        raise ValueError("the environments' state is too large")
    return split(zstandard.ZstdDecompressor().decompress(data))


def joined(parts: list[bytes]) -> bytes:
    """Join byte strings: their number and lengths, then the bytes."""
    header = np.array([len(parts), *map(len, parts)], "<i8").tobytes()
    return b"".join([header, *parts])


def split(data: bytes) -> list[bytes]:
    """Split what `joined` returned; raise ValueError if it is damaged."""
    count = int(np.frombuffer(data, "<i8", 1)[0])
    if not 0 <= count <= len(data) // 8:
        raise ValueError("a list of byte strings is damaged")
    lengths = np.frombuffer(data, "<i8", count, offset=8)
    ends = 8 * (count + 1) + np.cumsum(lengths)
    if (lengths < 0).any() or (count and int(ends[-1]) != len(data)):
        raise ValueError("a list of byte strings is damaged")
    return [data[int(e) - int(n) : int(e)] for e, n in zip(ends, lengths, strict=True)]


# -- checkpoints of schemas 1 and 2


def _from_schema_2(plain: dict[str, Any]) -> dict[str, Any]:
    """The episodes that ended in the newest rollout were a list of three numbers each, and are three columns."""
    episodes = plain["parts"]["collector"]["episodes"]
    ended = [tuple(one) for one in episodes.pop("finished")]
    names = ("episode_returns", "episode_lengths", "episode_levels")
    episodes |= dict(zip(names, zip(*ended, strict=True) if ended else ([], [], []), strict=True))
    return plain


def from_schema_1(checkpoint: Checkpoint, ranks: Ranks, most: int) -> Checkpoint:
    """The same checkpoint in the current layout.

    Schema 1 kept all tensors of B's rollouts, and a level chooser's state after Procgen's own states.
    """
    files = checkpoint.files  # changed in place: B is large, and must not be held twice
    old = parse_json(files["state.json"])
    plain, own = _plain_from_schema_1(old), {"augmentation": old["augmenter"]}
    blobs = opened(files.pop(f"envs{ranks.suffix}.zst"), most)
    if not blobs[0].startswith(b"{"):  # Procgen; an adapted environment's state begins with JSON
        own["levels"] = parse_json(blobs.pop())
    files["state.json"] = json.dumps(plain).encode()
    packed = joined([json.dumps(own).encode(), *blobs])
    files[f"collector{ranks.suffix}.zst"] = zstandard.ZstdCompressor(level=1).compress(packed)
    for number in plain["parts"]["algorithm"]["kept"]:
        name = _of_rank(f"{number:08d}.safetensors", ranks)
        files[f"shared/kept-{name}"] = files[f"shared/rollout-{name}"]
    return Checkpoint(checkpoint.name, msgspec.structs.replace(checkpoint.manifest, schema=2), files)


def _plain_from_schema_1(old: dict[str, Any]) -> dict[str, Any]:
    sums = {name: {"updates": s["steps"], "values": s["values"]} for name, s in old["sums"].items()}
    parts = {
        "weights": None,
        "adam": {"sums": sums, "moments": old["moments"]},
        "collector": {"normaliser": old["normaliser"], "episodes": old["episodes"]},
        "algorithm": {"cursor": old["cursor"], "kept": old["rollouts"], "remembered": old["remembered"]},
        "measurements": old["analysed"],
    }
    return {"steps": old["steps"], "rows": old["rows"], "parts": parts}
