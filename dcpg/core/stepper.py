"""One optimiser step: gradients over chunks, groups and ranks, one clip, one Adam step, and the means of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dcpg.core.batch import Batch
from dcpg.core.method import Common, Method
from dcpg.core.networks import Network, Outputs
from dcpg.core.state import State, check_shape, check_tensors
from dcpg.errors import NumericalFailure
from dcpg.ranks import ALONE, Ranks

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # the state that Adam keeps for each parameter


@dataclass
class Sums:
    """Running sums over the updates of one Adam in the current row, on the device, so that no update waits for them."""

    updates: int
    values: Tensor  # float64 [terms + 1], the terms in their order and then the gradient norm


class Stepper:
    """The Adams of a method and the network that they train."""

    def __init__(
        self,
        method: Method,
        settings: Common,
        network: Network,
        *,
        chunk: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.terms = method.adams
        self.network, self.max_grad_norm = network, settings.max_grad_norm
        self.chunk, self.device, self.ranks = chunk, device, ranks
        # One Adam per line (and one for a step before it), each over all parameters with its own moments (authors'
        # code); a parameter without a gradient is not touched. fused: one pass, and `found_inf` skips a step on the
        # device itself.
        self.adams = {
            name: torch.optim.Adam(network.parameters(), lr=settings.learning_rate, eps=settings.adam_eps, fused=True)
            for name in self.terms
        }
        self.failed = torch.zeros((), device=device)  # set on the device by a step that was not finite
        self.start_row()

    def step(
        self, name: str, batches: Sequence[Batch], couples: bool = False, *, look: bool = True, at: object = ""
    ) -> Tensor:
        """Minimise the terms of the Adam `name` on one batch per group; returns the terms and the gradient norm.

        `couples` keeps the graph of a whole minibatch. On an accelerator the host looks for numbers that are not finite
        only with `look`, because it must wait for the device; `at` is the position of the loop for the message.
        """
        terms = self.terms[name]
        count = self.ranks.total(torch.stack([batch.valid.sum() for batch in batches]).sum()).clamp(min=1)
        sums = {term: torch.zeros((), device=self.device) for term in terms}
        self.network.zero_grad(set_to_none=True)
        for part in batches if couples else [part for batch in batches for part in batch.chunks(self.chunk)]:
            out = Outputs(self.network, part, self.chunk)
            means = {term: (function(out, part) * part.valid).sum() / count for term, (_, function) in terms.items()}
            loss = torch.stack([terms[term][0] * mean for term, mean in means.items()]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            for term, mean in means.items():
                sums[term] += mean.detach()
        self._sum_over_ranks(sums)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.max_grad_norm)
        values = torch.stack([*sums.values(), norm])
        self._record(name, values)
        if self.device.type == "cpu" or look:
            self.check_finite(at)
        adam: Any = self.adams[name]
        adam.found_inf = self.failed
        adam.step()
        torch.autograd.graph.increment_version(self.network.parameters())  # a fused Adam does not, for `Rounded`
        return values

    def _sum_over_ranks(self, sums: dict[str, Tensor]) -> None:
        """Add up the ranks' gradients and terms, which are parts of one mean, in one message."""
        if self.ranks.alone:
            return
        parts = [p.grad for p in self.network.parameters() if p.grad is not None] + list(sums.values())
        flat = self.ranks.total(torch.cat([part.flatten() for part in parts]))
        at = 0
        for part in parts:
            part.copy_(flat[at : at + part.numel()].view_as(part))
            at += part.numel()

    def _record(self, name: str, values: Tensor) -> None:
        self.failed = torch.maximum(self.failed, (~values.isfinite().all()).float())
        self.sums[name].updates += 1
        self.sums[name].values += values

    def check_finite(self, at: object) -> None:
        """Stop the run if any step so far was not finite, and say which term it came from."""
        if not self.failed:
            return
        bad = [
            f"{term} of the {name} line"
            for name, terms in self.terms.items()
            for term, value in zip([*terms, "the gradient"], self.sums[name].values.tolist(), strict=True)
            if not math.isfinite(value)
        ]
        raise NumericalFailure(
            f"Not finite: {', '.join(bad)} ({at}). The step was not taken; the last checkpoint is finite."
        )

    def start_row(self) -> None:
        """Set the running sums to zero."""
        self.sums = {
            name: Sums(0, torch.zeros(len(terms) + 1, dtype=torch.float64, device=self.device))
            for name, terms in self.terms.items()
        }

    def row(self) -> dict[str, float]:
        """The means of the current row: every term unscaled and scaled, and gradient norms."""
        row: dict[str, float] = {}
        for name, terms in self.terms.items():
            sums = self.sums[name]
            if not sums.updates:
                continue
            *means, norm = (sums.values / sums.updates).tolist()
            for (term, (weight, _)), mean in zip(terms.items(), means, strict=True):
                row[f"{name}.{term}"] = mean
                row[f"{name}.{term}.scaled"] = weight * mean
            row[f"{name}.gradient_norm"] = norm
        return row

    def state(self) -> State:
        """The moments of every Adam as LINE/PARAMETER/MOMENT, and the running sums."""
        names: dict[Tensor, str] = {p: name for name, p in self.network.named_parameters()}
        moments = {
            f"{line}/{names[p]}/{key}": value.detach().cpu().contiguous()
            for line, adam in self.adams.items()
            for p, state in adam.state.items()
            for key, value in state.items()
        }
        sums = {name: {"updates": s.updates, "values": s.values.tolist()} for name, s in self.sums.items()}
        return State({"sums": sums, "moments": len(moments)}, moments)

    def restore(self, state: State) -> None:
        assert state.tensors is not None
        if len(state.tensors) != int(state.plain["moments"]):
            raise ValueError(f"{len(state.tensors)} Adam moments instead of {state.plain['moments']}")
        self._restore_moments(state.tensors)
        self.start_row()
        if set(state.plain["sums"]) != set(self.sums):
            raise ValueError("the running sums belong to other lines")
        for name, plain in state.plain["sums"].items():
            values = torch.tensor(plain["values"], dtype=torch.float64)
            check_shape(f"the sums of {name}", values, tuple(self.sums[name].values.shape))
            self.sums[name] = Sums(int(plain["updates"]), values.to(self.device))

    def _restore_moments(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = dict(self.network.named_parameters())
        for adam in self.adams.values():
            adam.state.clear()
        for key, value in tensors.items():
            line, name, moment = key.split("/")
            p = parameters[name]
            expected = torch.zeros((), dtype=torch.float32) if moment == "step" else p
            check_tensors("Adam states", {key: value}, {key: expected.detach().cpu()})
            if moment not in MOMENTS:
                raise ValueError(f"an Adam has no {moment}")
            state = self.adams[line].state.setdefault(p, {})
            # moments in the parameter's own memory layout, as Adam itself makes them
            state[moment] = value.to(p.device) if moment == "step" else torch.empty_like(p).copy_(value)
        if any(len(state) != len(MOMENTS) for adam in self.adams.values() for state in adam.state.values()):
            raise ValueError("some moments of an Adam are missing")
