"""Reads the weights of a run from its newest checkpoint, a milestone or an export."""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from dcpg.config.build import MOST_PARAMETERS, network_shapes
from dcpg.config.schema import Config
from dcpg.config.written import EXPORT, Written, parse_written
from dcpg.core.networks import Network
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.state import State, check_tensors
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput, Notice, NoValidCheckpoint, Unavailable
from dcpg.storage.checkpoint import MOST_STATE, Checkpoint, CheckpointStore, Damaged
from dcpg.storage.files import AWAY, FORBIDDEN, UnreadableNow, read_json, read_regular
from dcpg.storage.rundir import RunDirectory
from dcpg.text import option, printable
from dcpg.training.owner import Foreign, Owner, not_as_made
from dcpg.training.state import read_plain, read_tensors

WEIGHTS = "model.safetensors"  # of an export
MOST_WEIGHTS = 4 * MOST_PARAMETERS + 2**20  # bytes
MILESTONE = re.compile(r"[0-9]{12}\.safetensors")


@dataclass(frozen=True)
class Moment:
    """A run's weights at one point of training, and what else their evaluation needs."""

    weights: bytes | None  # None: untrained, as the seed draws them
    normaliser: RewardNormaliser
    steps: int
    k: int  # the evaluation that belongs to this moment
    between: bool = True  # between two rollouts, not in the middle of one
    damaged: tuple[str, ...] = ()  # newer checkpoints that were passed over, with the reason
    rows: tuple[int, str] | None = None  # so many rows of eval.jsonl came before a checkpoint, and their hash

    def __post_init__(self) -> None:
        if not all(type(number) is int and 0 <= number < 2**63 for number in (self.steps, self.k)):
            raise ValueError("its steps or evaluations are no count")


def save_weights(network: Network) -> bytes:
    """A safetensors file of the network's parameters."""
    return save_tensors(dict(network.state().tensors or {}))


def check_weights(config: Config, spaces: Spaces, data: bytes) -> None:
    """Raise Damaged if weights do not fit the network of a configuration; that network takes no memory here."""
    _fitting(network_shapes(config, spaces.shape, spaces.actions), data)


def load_weights(network: Network, data: bytes) -> None:
    """Load parameters from a safetensors file; raise Damaged if they do not fit the network or are not finite."""
    network.restore(State(tensors=_fitting(network, data)))


def _fitting(network: Network, data: bytes) -> dict[str, Tensor]:
    try:
        tensors = read_tensors(data)
    except ValueError as error:
        raise Damaged(f"the weights cannot be read: {error}") from None
    try:
        check_tensors("weights", tensors, network.state_dict())
    except ValueError as error:
        raise Damaged(str(error)) from None
    return tensors


def find(run: RunDirectory, written: Written, at: int | None = None) -> Moment:
    """The newest weights of a run or an export, those at a number of steps, or the untrained ones (at 0)."""
    if at is not None and not isinstance(at, Integral):
        raise BadInput(f"Give {option('at')} a whole number of steps, not {at!r}.")
    at = None if at is None else int(at)  # numpy's numbers, too
    if EXPORT in written.plain:
        return _exported(run, written, at)
    if at == 0:
        return _untrained(run, written)
    owner = Owner.of(written)
    return _newest(run, owner) if at is None else _milestone(run, owner, at)


def newest_weights(directory: Path) -> bytes:
    """The weights of a run's newest valid checkpoint, or of an export."""
    run = RunDirectory(directory)
    weights = find(run, parse_written(run.read_config(), run.config, code=False)).weights
    assert weights is not None
    return weights


def _normaliser(state: Any) -> RewardNormaliser:
    normaliser = RewardNormaliser.fresh(len(state["sums"]))
    normaliser.restore(state)
    return normaliser


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Say that what cannot be read is damaged, or cannot be read now."""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnreadableNow) or (isinstance(error, OSError) and error.errno in AWAY | FORBIDDEN):
            raise Unavailable(f"{what} cannot be read now ({error}); try again when it can be.") from None
        raise NoValidCheckpoint(f"{what} is damaged ({error}).") from None


def _exported(run: RunDirectory, written: Written, at: int | None) -> Moment:
    """The weights of an export; they must have the hash in its config.json."""
    with _reading(f"{run.path}, an export,"):
        about = written.plain[EXPORT]
        weights = read_regular(run.path / WEIGHTS, MOST_WEIGHTS)
        if hashlib.sha256(weights).hexdigest() != about["sha256"]:
            raise ValueError(f"{WEIGHTS} does not have the hash that config.json names")
        normaliser = _normaliser(about["normaliser"])
        moment = Moment(weights, normaliser, about["steps"], about["evaluation"])
        if "config" in about and not Owner.of(written).made(about["config"]):  # older ones do not tell
            raise ValueError("config.json is not what it was exported with")
    if at not in (None, moment.steps):
        alone = f"with the weights at {moment.steps} steps alone"
        raise BadInput(f"{run.path} is an export, {alone}; leave {option('at')} out.")
    return moment


def _newest(run: RunDirectory, owner: Owner, tries: int = 3) -> Moment:
    """The weights of the newest valid checkpoint. Those of an older one come with a warning."""
    store = CheckpointStore(run.checkpoints, most=MOST_WEIGHTS + MOST_STATE)
    names, reasons, changed = store.names(), list[str](), list[str]()
    found: Moment | None = None
    for name in reversed(names):
        try:
            checkpoint = store.load(store.root / name, only=("weights.safetensors", "state.json"))
            owner.check(checkpoint.manifest)
            found = _moment(checkpoint)
            break
        except Damaged as error:
            changed += error.changed if isinstance(error, Foreign) else ()
            reasons.append(f"{name}: {error}")
    if reasons and tries > 1 and store.names() != names:  # a trainer has replaced some of them meanwhile
        return _newest(run, owner, tries - 1)
    if found is not None and reasons:
        warnings.warn(
            f"These are the weights at {found.steps:,} steps: the newest checkpoint of {run.path} is damaged "
            f"({'; '.join(reasons)}). A resume sets it aside and goes on from there.",
            Notice,
            stacklevel=2,
        )
    if found is not None:
        return replace(found, damaged=tuple(reasons))
    if changed:
        raise not_as_made(run.config, changed)
    raise NoValidCheckpoint(f"No valid checkpoint in {store.root} ({'; '.join(reasons) or 'there is none'}).")


def _untrained(run: RunDirectory, written: Written) -> Moment:
    """Before the first step, when the weights depend on the seed alone."""
    if written.init:
        raise BadInput(f"{run.path} started from the weights of another run; evaluate that one instead.")
    return Moment(None, RewardNormaliser.fresh(written.config.env.num_envs), 0, 0)


def _moment(checkpoint: Checkpoint) -> Moment:
    state = read_plain(checkpoint)
    try:
        k = max(int(state["rows"]["eval"]) - 1, 0)
        normaliser = _normaliser(state["parts"]["collector"]["normaliser"])
        between = int(state["parts"]["algorithm"]["cursor"]["line"]) == 0
        weights, steps = checkpoint.files["weights.safetensors"], int(state["steps"])
        found = Moment(weights, normaliser, steps, k, between)
        written = state.get("rows_sha256", {}).get("eval")  # by older releases, none
        return found if written is None else replace(found, rows=(int(state["rows"]["eval"]), written))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"it does not hold a run's state ({error})") from None


def _milestone(run: RunDirectory, owner: Owner, at: int) -> Moment:
    names = [p.name for p in run.milestones.glob("*.safetensors")]
    found = sorted(int(name[:12]) for name in names if MILESTONE.fullmatch(name))
    if at not in found:
        newest = _newest(run, owner)
        if newest.between:
            found.append(newest.steps)
        if newest.steps == at and newest.between:
            return newest
        have = ", ".join(map(str, [0, *found]))
        raise BadInput(f"{run.path} has no weights at {at} steps; it has them at {have} (see the setting keep_every).")
    with _reading(f"The milestone at {at} steps of {run.path}"):
        state = read_json(run.milestones / f"{at:012d}.json", MOST_STATE)
        normaliser = _normaliser(state["normaliser"])
        weights = read_regular(run.milestones / f"{at:012d}.safetensors", MOST_WEIGHTS)
        if state["steps"] != at:
            raise ValueError(f"it is of {printable(state['steps'])} steps")
        if "sha256" in state and state["sha256"] != hashlib.sha256(weights).hexdigest():  # older ones have none
            raise ValueError("its weights do not have the hash that was written down")
        moment = Moment(weights, normaliser, at, int(state["evaluations"]))
    if "config" in state and not owner.made(state["config"]):  # older ones do not tell
        _newest(run, owner)  # says so if config.json was changed
        raise NoValidCheckpoint(f"The milestone at {at} steps of {run.path} belongs to another run.")
    return moment
