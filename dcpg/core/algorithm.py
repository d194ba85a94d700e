"""Algorithm 1: the only training loop of the project.

The paper's three pseudocode boxes are one skeleton; a `Method` fills it in. Line numbers are those of Algorithm 1.

    1  for each phase:
    2      B <- empty
    3      for N_pi rollouts:
    4          tau <- sample with pi, compute targets
    5-7        for each "Optimise ... with tau" line: epochs x minibatches of tau
    8          add what the method keeps of tau to B
           remember pi_old's outputs, once
    10-12  for each "Optimise ... with B" line: epochs x minibatches of B
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dcpg.core.buffer import Buffer
from dcpg.core.collector import Sampler
from dcpg.core.cursor import Cursor
from dcpg.core.loader import Loader
from dcpg.core.method import Method, Optimise
from dcpg.core.observer import LoopObserver
from dcpg.core.rollout import Rollout, check_actions
from dcpg.core.state import Large, State, check_shape
from dcpg.core.stepper import Stepper


class Algorithm:
    """The training loop of a method, with its collector, loader, stepper, buffer B and cursor."""

    def __init__(
        self,
        method: Method,
        collector: Sampler,
        loader: Loader,
        stepper: Stepper,
        buffer: Buffer,
        observer: LoopObserver | None = None,
    ) -> None:
        self.method, self.collector, self.loader, self.stepper = method, collector, loader, stepper
        self.B, self.observer = buffer, observer or LoopObserver()
        self.cursor = Cursor()
        self.tau: Rollout | None = None

    def rollout(self) -> None:
        """One iteration of the inner loop, starting at the cursor."""
        at, method = self.cursor, self.method
        if at.line == 0:
            self.stepper.start_row()
            self.tau = self.collector.sample(at.rollout)  # line 4
            at.line = 1
        assert self.tau is not None
        if (at.line, at.epoch, at.minibatch) == (1, 0, 0):
            self.observer.before_update(self.tau)
        tau = self.tau.on(self.loader.device)  # once for all lines
        for number, line in enumerate(method.policy_phase, 1):  # lines 5-7
            self.optimise(number, line, tau)
        if method.auxiliary_phase:
            self.B.add(at.rollout, self.tau)  # line 8
            if method.ends_phase(at.rollout + 1):
                self.remember()
                for number, line in enumerate(method.auxiliary_phase, len(method.policy_phase) + 1):  # lines 10-12
                    self.optimise(number, line, self.B)
                self.B.clear()  # line 2, of the next phase
        self.tau = None
        at.next_rollout()

    def optimise(self, number: int, line: Optimise, data: Rollout | Buffer) -> None:
        """ "Optimise ... with ...": epochs x minibatches, every sample once per epoch."""
        at, minibatches = self.cursor, self.loader.open(line, data, self.cursor.rollout, number)
        for epoch, minibatch in at.remaining(number, line.epochs):
            batches = minibatches.load(epoch, minibatch)
            for adam in line.adams:
                self.stepper.step(adam, batches, line.couples, look=minibatch == 0, at=at)
            at.advance(len(minibatches))
            self.observer.between_optimiser_steps()

    def remember(self) -> None:
        """pi_old's outputs on all of B, computed once at the start of an auxiliary phase; no network is copied."""
        if self.B.old_log_policy is not None:
            return
        log_policies = []
        for segment in range(len(self.B)):
            self.observer.between_optimiser_steps()
            frames = self.B.states(torch.tensor([segment]))[:, 0]
            log_policies.append(self.collector.actor.log_policy(frames))
        self.B.old_log_policy = torch.stack(log_policies)

    def state(self) -> State:
        """The cursor; tau, the rollouts of B and pi_old's outputs are shared files."""
        at, B, shared = self.cursor, self.B, dict[str, Callable[[], Large]]()
        for number, kept in B.rollouts.items():
            shared[f"rollout-{number:08d}.frames"] = partial(getattr, kept, "segments")
            if self.tau is None or number != at.rollout:  # what B keeps of tau is in tau's own file
                shared[f"kept-{number:08d}.safetensors"] = partial(getattr, kept, "tensors")
        if self.tau is not None:
            shared[f"rollout-{at.rollout:08d}.frames"] = partial(getattr, self.tau, "segments")
            shared[f"rollout-{at.rollout:08d}.safetensors"] = self.tau.tensors
        if (old := B.old_log_policy) is not None:
            shared[f"old-policy-{at.rollout:08d}.safetensors"] = lambda: {"old_log_policy": old}
        plain = {"cursor": dataclasses.asdict(at), "kept": list(B.rollouts), "remembered": old is not None}
        return State(plain, shared=shared)

    def restore(self, state: State) -> None:
        """Restore a state. The collector must be restored first."""
        plain, frames = state.plain, self.B.frames
        self.cursor = at = Cursor.restored(plain["cursor"], self.method.lines)
        self.B.clear()
        self.tau = None
        if at.line > 0:
            tensors = _shared(state, f"rollout-{at.rollout:08d}.safetensors")
            segments = _shared(state, f"rollout-{at.rollout:08d}.frames")
            tau = Rollout.restored(tensors, segments, frames, list(self.method.targets), self.loader.actions)
            self.tau = tau.with_augmentation(self.collector.augmentation)
        for number in map(int, plain["kept"]):
            if self.tau is not None and number == at.rollout:
                self.B.add(number, self.tau)
            else:
                tensors = _shared(state, f"kept-{number:08d}.safetensors")
                check_actions(tensors.get("actions", torch.zeros(0)), self.loader.actions)
                self.B.restore(number, tensors, _shared(state, f"rollout-{number:08d}.frames"))
        if plain["remembered"]:
            old = _shared(state, f"old-policy-{at.rollout:08d}.safetensors")["old_log_policy"]
            if old.dtype != torch.float32:
                raise ValueError(f"pi_old is {old.dtype} instead of float32")
            check_shape("pi_old", old, (len(self.B), frames.length, self.loader.actions))
            self.B.old_log_policy = old
        self._check_minibatch()

    def _check_minibatch(self) -> None:
        """Raise ValueError for a minibatch that the restored data does not have."""
        at, lines = self.cursor, self.method.lines
        if self.tau is None or not 1 <= at.line <= len(lines):
            return
        data = self.tau if at.line <= len(self.method.policy_phase) else self.B
        count = self.loader.count(lines[at.line - 1], data)
        if at.minibatch >= max(count, 1):
            raise ValueError(f"the loop cannot be at minibatch {at.minibatch} of {count}")


def _shared(state: State, name: str) -> Any:
    return state.shared[name]()
