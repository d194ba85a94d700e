"""The whole state of a run as files, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import safetensors
import torch
import zstandard
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from dcpg.core.algorithm import Algorithm, Cursor, Sums
from dcpg.core.buffer import decompress
from dcpg.core.rollout import Rollout
from dcpg.ranks import Ranks
from dcpg.storage.checkpoint import Checkpoint, Damaged
from dcpg.training.weights import _compare, load_weights, weights_file

MAX_ENV_STATE = 2**21  # bytes of one environment's state


# what reading a file of the right format and the wrong contents can raise
STRANGE = (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


def own_files(algorithm: Algorithm, env_state: list[bytes], state: Mapping[str, Any]) -> dict[str, bytes]:
    """What belongs to one checkpoint alone."""
    at, moments = algorithm.cursor, _adam_tensors(algorithm)
    plain = {
        **state,
        "cursor": dataclasses.asdict(at),
        "sums": {name: {"steps": s.steps, "values": s.values.tolist()} for name, s in algorithm.sums.items()},
        "rollouts": list(algorithm.B.rollouts),
        "remembered": algorithm.B.old_log_policy is not None,
        "moments": len(moments),
    }
    files = {_envs_name(algorithm.ranks): zstandard.ZstdCompressor(level=1).compress(_joined(env_state))}
    if algorithm.ranks.first:  # every rank holds the same of these
        files |= {
            "weights.safetensors": weights_file(algorithm.network),
            "adam.safetensors": save_tensors(moments),
            "state.json": json.dumps(plain, allow_nan=False).encode(),
        }
    return files


def shared_files(algorithm: Algorithm) -> dict[str, Callable[[], bytes]]:
    """What several checkpoints name, each made only when it is first written: tau, the rollouts of B, pi_old."""
    files: dict[str, Callable[[], bytes]] = {}
    B, at, ranks = algorithm.B, algorithm.cursor, algorithm.ranks
    for number, kept in B.rollouts.items():
        files[_frames_name(number, ranks)] = partial(_joined, kept.segments)
        files[_tensors_name(number, ranks)] = partial(_saved, kept.tau)
    if algorithm.tau is not None:
        files[_frames_name(at.rollout, ranks)] = lambda: _joined(algorithm.compressed())
        files[_tensors_name(at.rollout, ranks)] = partial(_saved, algorithm.tau)
    if B.old_log_policy is not None:
        files[_old_name(at.rollout, ranks)] = partial(save_tensors, {"old_log_policy": B.old_log_policy})
    return files


def restore(algorithm: Algorithm, checkpoint: Checkpoint) -> tuple[dict[str, Any], list[bytes]]:
    """Put a verified checkpoint's state into the algorithm; returns the rest of the state and the environments'."""
    ranks = algorithm.ranks
    try:
        state: dict[str, Any] = json.loads(checkpoint.files["state.json"])
        cursor = _cursor(algorithm, state["cursor"])
        load_weights(algorithm.network, checkpoint.files["weights.safetensors"])
        _load_adams(algorithm, checkpoint.files["adam.safetensors"], int(state["moments"]))
        algorithm.cursor = cursor
        algorithm.sums = _sums(algorithm, state["sums"])
        algorithm.B.clear()
        algorithm.tau, algorithm.segments = None, []
        for number in state["rollouts"]:
            tau, segments = _load_rollout(algorithm, checkpoint, int(number), frames=False)
            algorithm.B.add(int(number), tau, segments)
            if int(number) != cursor.rollout or cursor.line == 0:
                # B is large: it is not held twice
                del checkpoint.files[f"shared/{_frames_name(int(number), ranks)}"]
        if cursor.line > 0:
            algorithm.tau, algorithm.segments = _load_rollout(algorithm, checkpoint, cursor.rollout, frames=True)
        if state["remembered"]:
            old = load_tensors(checkpoint.files[f"shared/{_old_name(cursor.rollout, ranks)}"])["old_log_policy"]
            _expect("pi_old", old, (len(algorithm.B), algorithm.B.shape[0] - 1, algorithm.actions))
            algorithm.B.old_log_policy = old
        envs = _environments(checkpoint.files[_envs_name(ranks)], MAX_ENV_STATE * (algorithm.B.num_envs + 1))
    except (*STRANGE, zstandard.ZstdError, safetensors.SafetensorError) as error:
        raise Damaged(f"it does not hold this run's state ({type(error).__name__}: {error})") from None
    return state, envs


def _cursor(algorithm: Algorithm, plain: Mapping[str, Any]) -> Cursor:
    cursor = Cursor(**{k: int(v) for k, v in plain.items()})
    lines = algorithm.method.lines
    inside = 0 <= cursor.line <= len(lines) + 1 and min(cursor.rollout, cursor.epoch, cursor.minibatch) >= 0
    if not inside or (1 <= cursor.line <= len(lines) and cursor.epoch > lines[cursor.line - 1].epochs):
        raise ValueError(f"the loop has no place {dict(plain)}")
    return cursor


def _sums(algorithm: Algorithm, plain: Mapping[str, Any]) -> dict[str, Sums]:
    sums = algorithm.fresh_sums()
    if set(plain) != set(sums):
        raise ValueError("the running sums are of other lines")
    for name, s in plain.items():
        values = torch.tensor(s["values"], dtype=torch.float64)
        _expect(f"the sums of {name}", values, tuple(sums[name].values.shape))
        sums[name] = Sums(int(s["steps"]), values.to(algorithm.device))
    return sums


def _expect(what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{what} has shape {tuple(tensor.shape)} instead of {shape}")
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ValueError(f"{what} is not finite")


def _adam_tensors(algorithm: Algorithm) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {p: name for name, p in algorithm.network.named_parameters()}
    return {
        f"{line}/{names[p]}/{key}": value.detach().cpu().contiguous()
        for line, adam in algorithm.adams.items()
        for p, state in adam.state.items()
        for key, value in state.items()
    }


def _load_adams(algorithm: Algorithm, data: bytes, count: int) -> None:
    tensors = load_tensors(data)
    if len(tensors) != count:
        raise ValueError(f"{len(tensors)} Adam moments instead of {count}")
    parameters = dict(algorithm.network.named_parameters())
    for adam in algorithm.adams.values():
        adam.state.clear()
    for key, value in tensors.items():
        line, name, field = key.split("/")
        p = parameters[name]
        expected = torch.zeros((), dtype=torch.float32) if field == "step" else p
        _compare("Adam states", {key: value}, {key: expected.detach().cpu()})
        if field not in ("step", "exp_avg", "exp_avg_sq"):
            raise ValueError(f"an Adam has no {field}")
        state = algorithm.adams[line].state.setdefault(p, {})
        # moments in the parameter's own memory layout, as Adam itself makes them
        state[field] = value.to(p.device) if field == "step" else torch.empty_like(p).copy_(value)
    if any(len(state) != 3 for adam in algorithm.adams.values() for state in adam.state.values()):
        raise ValueError("an Adam lacks some of its moments")


def _load_rollout(
    algorithm: Algorithm, checkpoint: Checkpoint, number: int, frames: bool
) -> tuple[Rollout, list[bytes]]:
    B = algorithm.B
    segments = _split(checkpoint.files[f"shared/{_frames_name(number, algorithm.ranks)}"])
    tensors = load_tensors(checkpoint.files[f"shared/{_tensors_name(number, algorithm.ranks)}"])
    T, N = B.shape[0] - 1, B.num_envs
    expected = _rollout_dtypes(algorithm)
    if tensors.keys() != expected.keys():
        raise ValueError(f"rollout {number} has other tensors: {sorted(tensors.keys() ^ expected.keys())[:3]}")
    for name, tensor in tensors.items():
        _expect(f"{name} of rollout {number}", tensor, (T + name.startswith("values/"), N))
        if tensor.dtype != expected[name]:
            raise ValueError(f"{name} of rollout {number} is {tensor.dtype} instead of {expected[name]}")
    if not ((tensors["actions"] >= 0) & (tensors["actions"] < algorithm.actions)).all():
        raise ValueError(f"rollout {number} has actions that the environment does not have")
    if len(segments) != N:
        raise ValueError(f"{len(segments)} segments for {N} environments")
    opened = np.empty((T + 1, N, *B.shape[1:]) if frames else 0, B.dtype)
    if frames:
        for n, segment in enumerate(segments):
            opened[:, n] = decompress(segment, B.shape, B.dtype)
    return Rollout.from_tensors(torch.from_numpy(opened), tensors), segments


def _rollout_dtypes(algorithm: Algorithm) -> dict[str, torch.dtype]:
    """The tensors of one of this run's rollouts."""
    whole, truth, real = torch.int64, torch.bool, torch.float32
    found = dict.fromkeys(("actions", "levels", "step_counts"), whole) | dict.fromkeys(
        ("dones", "valid", "crosses"), truth
    )
    found |= dict.fromkeys(("log_probs", "raw_rewards", "rewards", "advantages_raw", "advantages"), real)
    for name in ("values", "final_values", "returns"):
        found |= {f"{name}/{head}": real for head in algorithm.method.targets}
    return found


def _environments(data: bytes, most: int) -> list[bytes]:
    # zstd's own limit is not applied to a frame that tells its size, so look at what it tells first
    if not 0 <= zstandard.frame_content_size(data) <= most:
        raise ValueError("the environments' state is too large")
    return _split(zstandard.ZstdDecompressor().decompress(data))


def _saved(tau: Rollout) -> bytes:
    return save_tensors(tau.tensors())


def _joined(parts: list[bytes]) -> bytes:
    """Byte strings as one: their number and lengths, then the bytes."""
    header = np.array([len(parts), *map(len, parts)], "<i8").tobytes()
    return b"".join([header, *parts])


def _split(data: bytes) -> list[bytes]:
    count = int(np.frombuffer(data, "<i8", 1)[0])
    if not 0 <= count <= len(data) // 8:
        raise ValueError("a list of byte strings is damaged")
    lengths = np.frombuffer(data, "<i8", count, offset=8)
    ends = 8 * (count + 1) + np.cumsum(lengths)
    if (lengths < 0).any() or (count and int(ends[-1]) != len(data)):
        raise ValueError("a list of byte strings is damaged")
    return [data[int(e) - int(n) : int(e)] for e, n in zip(ends, lengths, strict=True)]


def _envs_name(ranks: Ranks) -> str:
    return f"envs{ranks.suffix}.zst"


def _frames_name(rollout: int, ranks: Ranks) -> str:
    return f"rollout-{rollout:08d}{ranks.suffix}.frames"


def _tensors_name(rollout: int, ranks: Ranks) -> str:
    return f"rollout-{rollout:08d}{ranks.suffix}.safetensors"


def _old_name(rollout: int, ranks: Ranks) -> str:
    return f"old-policy-{rollout:08d}{ranks.suffix}.safetensors"
