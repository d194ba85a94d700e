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

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dcpg.core.actor import Actor
from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer, compress
from dcpg.core.method import Common, Method, Optimise, Terms
from dcpg.core.networks import Network, Outputs
from dcpg.core.rollout import Rollout
from dcpg.errors import NumericalFailure
from dcpg.ranks import ALONE, Ranks, groups
from dcpg.seeding import generator


@dataclass
class Cursor:
    """Where the loop stands; every random draw and a resume follow from it alone."""

    rollout: int = 0  # whole rollouts done
    line: int = 0  # 0: tau is not collected yet; k: at the k-th "Optimise" line
    epoch: int = 0
    minibatch: int = 0

    def remaining(self, line: int, epochs: int) -> Iterator[tuple[int, int]]:
        """The (epoch, minibatch) of a line that are still to do, as `step_done` moves the cursor on."""
        if self.line < line:
            self.line, self.epoch, self.minibatch = line, 0, 0
        while self.line == line and self.epoch < epochs:
            yield self.epoch, self.minibatch
        if self.line == line:
            self.line, self.epoch, self.minibatch = line + 1, 0, 0

    def step_done(self, minibatches: int) -> None:
        """One optimiser step further."""
        self.minibatch += 1
        if self.minibatch == minibatches:
            self.epoch, self.minibatch = self.epoch + 1, 0

    def next_rollout(self) -> None:
        """All lines of this rollout are done."""
        self.rollout, self.line, self.epoch, self.minibatch = self.rollout + 1, 0, 0, 0


@dataclass
class Sums:
    """Running sums of an Adam's steps over the current row, kept on the device so that no step waits for them."""

    steps: int
    values: Tensor  # float64 [terms + 1], the terms in their order and then the gradient norm

    @classmethod
    def zero(cls, terms: Terms, device: torch.device) -> Sums:
        """The sums before the row's first step."""
        return cls(0, torch.zeros(len(terms) + 1, dtype=torch.float64, device=device))


class Algorithm:
    """A method in training: networks, Adams, tau, B and the cursor."""

    def __init__(
        self,
        method: Method,
        settings: Common,
        network: Network,
        collect: Callable[[int], Rollout],  # rollout number -> tau with its targets
        buffer: Buffer,
        *,
        seed: int,
        actions: int,
        chunk: int,
        device: torch.device,
        precision: str = "fp32",
        shards: int = 1,
        ranks: Ranks = ALONE,
        between_steps: Callable[[], None] = lambda: None,
        before_update: Callable[[Rollout], None] = lambda tau: None,  # tau, at the parameters that acted
        on_step: Callable[[str, Tensor], None] = lambda name, values: None,  # for tests: a step's terms and norm
    ) -> None:
        self.method, self.settings, self.network, self.collect, self.B = method, settings, network, collect, buffer
        self.seed, self.actions, self.chunk, self.device = seed, actions, chunk, device
        self.groups, self.ranks = groups(shards, buffer.num_envs * ranks.size, ranks), ranks
        self.autocast = precision == "bf16"
        self.between_steps, self.before_update, self.on_step = between_steps, before_update, on_step
        self.actor = Actor(network, tuple(method.targets), chunk, device, precision)
        # One Adam a line (and one for a step before it), each over all parameters with moments of its own (authors'
        # code); a parameter without a gradient is not touched. fused: one pass, and `found_inf` skips a step on the
        # device itself.
        self.adams = {
            name: torch.optim.Adam(network.parameters(), lr=settings.learning_rate, eps=settings.adam_eps, fused=True)
            for name in method.adams
        }
        self.cursor = Cursor()
        self.tau: Rollout | None = None
        self.segments: list[bytes] = []  # tau's frames, compressed once (see `compressed`)
        self.opener = ThreadPoolExecutor(1, "segments")  # opens the next minibatch of B while the current one trains
        self.sums = self.fresh_sums()
        self.failed = torch.zeros((), device=device)  # set on the device by a step that was not finite

    def rollout(self) -> None:
        """One turn of the inner loop, from wherever the cursor stands."""
        at, method = self.cursor, self.method
        if at.line == 0:
            self.sums = self.fresh_sums()
            self.tau = self.collect(at.rollout)  # line 4
            at.line = 1
        assert self.tau is not None
        if (at.line, at.epoch, at.minibatch) == (1, 0, 0):
            self.before_update(self.tau)
        for number, line in enumerate(method.policy_phase, 1):  # lines 5-7
            self.optimise(number, line, self.tau)
        if method.auxiliary_phase:
            self.B.add(at.rollout, self.tau, self.compressed())  # line 8
            if (at.rollout + 1) % method.N_pi == 0:
                self.remember()
                for number, line in enumerate(method.auxiliary_phase, len(method.policy_phase) + 1):  # lines 10-12
                    self.optimise(number, line, self.B)
                self.B.clear()  # line 2, of the next phase
        self.tau, self.segments = None, []
        at.next_rollout()

    def optimise(self, number: int, line: Optimise, data: Rollout | Buffer) -> None:
        """ "Optimise ... with ...": epochs x minibatches, every sample once an epoch."""
        at, split_of = self.cursor, -1
        parts = [data.part(group.envs) for group in self.groups]
        splits: list[tuple[Tensor, ...]] = []
        ahead: Future[list[Batch]] | None = None
        minibatches = line.data.minibatches_of(len(data) * self.ranks.size)

        def opened(minibatch: int) -> list[Batch]:
            return [part.minibatch(split[minibatch]) for part, split in zip(parts, splits, strict=True)]

        for epoch, minibatch in at.remaining(number, line.epochs):
            place = (at.rollout, number, epoch)
            if split_of != epoch:
                orders = [part.order(g) for part, g in zip(parts, self.generators("order", *place), strict=True)]
                splits, split_of = [order.tensor_split(minibatches) for order in orders], epoch
            batches = ahead.result() if ahead is not None else opened(minibatch)
            more = data is self.B and minibatch + 1 < minibatches
            ahead = self.opener.submit(opened, minibatch + 1) if more else None
            if line.draw is not None:
                drawing = zip(batches, parts, self.generators("draw", *place, minibatch), strict=True)
                batches = [line.draw(batch, part, g, self.actions) for batch, part, g in drawing]
            batches = [batch.to(self.device) for batch in batches]
            for name, terms in line.adams.items():
                self.step(name, terms, batches, line.couples)
            at.step_done(minibatches)
            self.between_steps()

    def generators(self, name: str, *place: int) -> list[torch.Generator]:
        """One for each group, keyed by what it is for and where the loop stands."""
        return [generator(self.seed, name, *place, *group.key) for group in self.groups]

    def step(self, name: str, terms: Terms, batches: Sequence[Batch], couples: bool = False) -> None:
        """One optimiser step on one batch a group: gradients summed over chunks, groups and ranks, clipped once."""
        count = self.ranks.total(torch.stack([batch.valid.sum() for batch in batches]).sum()).clamp(min=1)
        sums = {term: torch.zeros((), device=self.device) for term in terms}
        self.network.zero_grad(set_to_none=True)
        for part in batches if couples else [part for batch in batches for part in batch.chunks(self.chunk)]:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                out = Outputs(self.network, part, self.chunk)
                means = {
                    term: (function(out, part) * part.valid).sum() / count for term, (_, function) in terms.items()
                }
                loss = torch.stack([terms[term][0] * mean for term, mean in means.items()]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            for term, mean in means.items():
                sums[term] += mean.detach()
        self._sum_over_ranks(sums)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_grad_norm)
        self._apply(name, sums, norm)

    def _sum_over_ranks(self, sums: dict[str, Tensor]) -> None:
        """Every rank's gradients and terms are parts of one mean: one message adds them up."""
        if self.ranks.alone:
            return
        parts = [p.grad for p in self.network.parameters() if p.grad is not None] + list(sums.values())
        flat = self.ranks.total(torch.cat([part.flatten() for part in parts]))
        at = 0
        for part in parts:
            part.copy_(flat[at : at + part.numel()].view_as(part))
            at += part.numel()

    def _apply(self, name: str, sums: dict[str, Tensor], norm: Tensor) -> None:
        """Step the Adam unless something is not finite; then stop, before the step, and say what it was."""
        values = torch.stack([*sums.values(), norm])
        self.failed = torch.maximum(self.failed, (~values.isfinite().all()).float())
        running = self.sums[name]
        running.steps += 1
        running.values += values
        if self.device.type == "cpu" or self.cursor.minibatch == 0:  # a look at an accelerator makes it wait
            self.check_finite()
        adam: Any = self.adams[name]
        adam.found_inf = self.failed
        adam.step()
        self.on_step(name, values)

    def check_finite(self) -> None:
        """Stop the run if any step so far was not finite, and say which term it came from."""
        if not self.failed:
            return
        bad = [
            f"{term} of the {name} line"
            for name, terms in self.method.adams.items()
            for term, value in zip([*terms, "the gradient"], self.sums[name].values.tolist(), strict=True)
            if not math.isfinite(value)
        ]
        at = self.cursor
        raise NumericalFailure(
            f"Not finite: {', '.join(bad)} (rollout {at.rollout + 1}, epoch {at.epoch + 1}, minibatch "
            f"{at.minibatch + 1}). The step was not taken; the last checkpoint is finite."
        )

    def fresh_sums(self) -> dict[str, Sums]:
        """The running sums at the start of a row."""
        return {name: Sums.zero(terms, self.device) for name, terms in self.method.adams.items()}

    def compressed(self) -> list[bytes]:
        """tau's frames as segments, made when B or a checkpoint first asks for them."""
        if not self.segments:
            assert self.tau is not None
            self.segments = compress(self.tau.frames)
        return self.segments

    def remember(self) -> None:
        """pi_old's outputs on all of B, computed once at the start of an auxiliary phase; no network is copied."""
        if self.B.old_log_policy is not None:
            return
        log_policies = []
        for segment in range(len(self.B)):
            self.between_steps()
            frames = self.B.states(torch.tensor([segment]))[:, 0]
            log_policies.append(self.actor.log_policy(frames))
        self.B.old_log_policy = torch.stack(log_policies)

    def row(self) -> dict[str, Any]:
        """The means of the current row: every term unscaled and scaled, and gradient norms."""
        row: dict[str, Any] = {}
        for name, terms in self.method.adams.items():
            sums = self.sums[name]
            if not sums.steps:
                continue
            *means, norm = (sums.values / sums.steps).tolist()
            for (term, (weight, _)), mean in zip(terms.items(), means, strict=True):
                row[f"{name}.{term}"] = mean
                row[f"{name}.{term}.scaled"] = weight * mean
            row[f"{name}.gradient_norm"] = norm
        return row
