"""A trained agent, from a run's directory or from an export of one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcpg import snapshot
from dcpg.build import build_network
from dcpg.checkpoint import Checkpoint, CheckpointStore, Damaged
from dcpg.config import Config, device_of, from_json
from dcpg.envs.base import VectorEnv
from dcpg.envs.make import EnvMaker, make_one
from dcpg.envs.normaliser import RewardNormaliser
from dcpg.errors import BadInput, NoValidCheckpoint
from dcpg.rollout import Actor, sample_actions
from dcpg.rundir import RunDirectory
from dcpg.seeding import generator

EXPORT = "export"  # the key of config.json that makes a folder an export, and tells its moment
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Moment:
    """A run's weights at some time, with what an evaluation needs besides."""

    weights: bytes | None  # None: as the seed draws them
    normaliser: RewardNormaliser
    steps: int
    k: int  # the evaluation that belongs to this moment
    between: bool = True  # between two rollouts, not in the middle of one


class Agent:
    """A policy that acts."""

    def __init__(self, config: Config, moment: Moment, env: VectorEnv) -> None:
        self.config, self.moment = config, moment
        self.normaliser, self.steps, self.k = moment.normaliser, moment.steps, moment.k
        self.method, self.shape, self.env = config.declared(), env.shape, env
        network = build_network(config, env.shape, env.num_actions)
        if moment.weights is not None:
            snapshot.load_weights(network, moment.weights)
        try:
            device = device_of(config)
        except BadInput:  # trained on an accelerator that is not here
            device = torch.device("cpu")
        self.network = network.to(device)
        self.actor = Actor(
            self.network, tuple(self.method.targets), config.machine.chunk, device, config.machine.precision
        )
        self._acted = 0

    def act(self, observation: NDArray[Any], greedy: bool = False) -> NDArray[np.int64]:
        """Actions for one observation or a batch of them; sampled from the policy, or its most likely ones."""
        observation = np.asarray(observation)
        shapes = (self.env.raw_shape, self.shape)  # as the environment gives it, or as the networks see it
        single = observation.shape in shapes
        batch = observation[None] if single else observation
        if batch.shape[1:] not in shapes:
            raise BadInput(f"An observation has shape {self.env.raw_shape}; got {observation.shape}.")
        log_policy = self.actor.log_policy(batch if batch.shape[1:] == self.shape else self.env.arrange(batch))
        if greedy:
            actions = log_policy.argmax(1)
        else:
            g = generator(self.config.seed, "agent", self._acted)
            actions = sample_actions(log_policy, torch.rand(len(log_policy), generator=g, dtype=torch.float64))
            self._acted += 1
        chosen: NDArray[np.int64] = actions.numpy() + self.env.first_action
        return chosen[0] if single else chosen


def load(directory: str | Path, at: int | None = None, maker: EnvMaker | None = None) -> Agent:
    """The agent of a run: its newest valid checkpoint, the milestone at so many steps, or the untrained one (0).

    A folder that `dcpg export` wrote holds one agent alone.
    """
    run = RunDirectory(Path(directory))
    config = from_json(run.read_config(), run.config)
    torch.set_num_threads(config.machine.threads)
    moment = find(run, config, at)
    env = make_one(config, maker)
    env.close()
    try:
        return Agent(config, moment, env)
    except Damaged as error:
        raise NoValidCheckpoint(f"{directory}: {error}.") from None


def find(run: RunDirectory, config: Config, at: int | None = None) -> Moment:
    """The weights that `load` takes."""
    if EXPORT in run.read_config():
        return _exported(run, at)
    return _newest(run) if at is None else _milestone(run, at) if at else _untrained(run, config)


def newest_weights(directory: Path) -> bytes:
    """The weights of a run's newest valid checkpoint, or of an export."""
    run = RunDirectory(directory)
    weights = (_exported(run) if EXPORT in run.read_config() else _newest(run)).weights
    assert weights is not None
    return weights


def _exported(run: RunDirectory, at: int | None = None) -> Moment:
    """The one moment of an export; its weights must be those that were exported."""
    try:
        about = run.read_config()[EXPORT]
        weights = (run.path / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != about["sha256"]:
            raise ValueError(f"{WEIGHTS} does not have the hash that config.json names")
        normaliser = RewardNormaliser.restored(about["normaliser"])
        steps, k = int(about["steps"]), int(about["evaluation"])
    except OSError as error:
        raise NoValidCheckpoint(f"{run.path} is a damaged export ({WEIGHTS}: {error.strerror}).") from None
    except (KeyError, TypeError, ValueError) as error:
        raise NoValidCheckpoint(f"{run.path} is a damaged export ({error}).") from None
    if at not in (None, steps):
        raise BadInput(f"{run.path} is an export, with the weights at {steps} steps alone; leave --at out.")
    return Moment(weights, normaliser, steps, k)


def _newest(run: RunDirectory) -> Moment:
    store = CheckpointStore(run.checkpoints)
    reasons = []
    for name in reversed(store.names()):
        try:
            return _moment(store.load(store.root / name, shared=False))
        except Damaged as error:
            reasons.append(f"{name}: {error}")
    raise NoValidCheckpoint(f"No valid checkpoint in {store.root} ({'; '.join(reasons) or 'there is none'}).")


def _untrained(run: RunDirectory, config: Config) -> Moment:
    """Before the first step: the seed alone decides the weights."""
    if run.read_config().get("init"):
        raise BadInput(f"{run.path} started from the weights of another run; evaluate that one instead.")
    return Moment(None, RewardNormaliser.fresh(config.env.num_envs), 0, 0)


def _moment(checkpoint: Checkpoint) -> Moment:
    try:
        state = json.loads(checkpoint.files["state.json"])
        k = max(int(state["rows"]["eval"]) - 1, 0)
        normaliser = RewardNormaliser.restored(state["normaliser"])
        between = int(state["cursor"]["line"]) == 0
        return Moment(checkpoint.files["weights.safetensors"], normaliser, int(state["steps"]), k, between)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"it does not hold a run's state ({error})") from None


def _milestone(run: RunDirectory, at: int) -> Moment:
    found = sorted(int(p.stem) for p in run.milestones.glob("*.safetensors") if p.stem.isdigit())
    if at not in found:
        newest = _newest(run)
        if newest.between:
            found.append(newest.steps)
        if newest.steps == at and newest.between:
            return newest
        have = ", ".join(map(str, [0, *found]))
        raise BadInput(f"{run.path} has no weights at {at} steps; it has them at {have} (see --set keep_every).")
    try:
        state = json.loads((run.milestones / f"{at:012d}.json").read_bytes())
        normaliser = RewardNormaliser.restored(state["normaliser"])
        weights = (run.milestones / f"{at:012d}.safetensors").read_bytes()
        return Moment(weights, normaliser, at, int(state["evaluations"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise NoValidCheckpoint(f"The milestone at {at} steps of {run.path} is damaged ({error}).") from None
