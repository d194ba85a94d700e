"""The loop: what it visits, that it stops before a bad step, and that it can stop anywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from dcpg.config.resolve import resolve
from dcpg.core.batch import Batch
from dcpg.core.cursor import Cursor
from dcpg.core.method import Phasic, Terms
from dcpg.core.observer import LoopObserver
from dcpg.core.stepper import Stepper
from dcpg.errors import NumericalFailure
from dcpg.methods import METHODS
from tests.small import SOON, N, T, in_training, step

PHASIC = {name: issubclass(spec.settings, Phasic) for name, spec in METHODS.items()}
GOLDEN = Path(__file__).parents[1] / "golden" / "losses.json"


LATER = [pytest.param(name, n, marks=pytest.mark.faults) for name in METHODS if name not in SOON for n in (2, 4)]


@pytest.mark.parametrize(("name", "shards"), [*((name, 1) for name in METHODS), *product(SOON, (2, 4)), *LATER])
def test_every_transition_exactly_once_an_epoch(name: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = in_training(name, shards=shards, **({"segments": 4} if PHASIC[name] else {}))
    seen: dict[tuple[str, int], list[int]] = {}
    original = Stepper.step

    def spy(self: Stepper, name: str, batches: list[Batch], couples: bool, *, look: bool, at: Cursor) -> torch.Tensor:
        place = (name, at.rollout, at.epoch)
        assert len(batches) == shards
        assert len({len(batch) for batch in batches}) == 1  # equally many of each group
        for group, batch in enumerate(batches):
            envs = (batch.segments if batch.segments.numel() else batch.rows) % N
            assert set((envs // (N // shards)).tolist()) == {group}
            if batch.segments.numel():
                seen.setdefault(place, []).extend(batch.segments.tolist())
            else:  # transitions are told apart by their returns, which are all different
                seen.setdefault(place, []).extend(batch.returns["value"].tolist())
        return original(self, name, batches, couples, look=look, at=at)

    monkeypatch.setattr(Stepper, "step", spy)
    returns = {}
    collect = algorithm.collector.collect
    algorithm.collector.collect = lambda r: returns.setdefault(r, collect(r))
    for _ in range(2):
        algorithm.rollout()
    for (name_of_step, rollout, _), rows in seen.items():
        if name_of_step != "auxiliary":
            assert sorted(rows) == sorted(returns[rollout].returns["value"].flatten().tolist())
        else:
            assert sorted(rows) == list(range(2 * N))
    epochs = {step: len([1 for (n, r, _) in seen if n == step and r == 1]) for step in {n for n, _, _ in seen}}
    assert epochs == {step: line.epochs for line in algorithm.method.lines for step in line.adams}


def test_the_auxiliary_phase_comes_every_n_pi_rollouts_with_all_of_them() -> None:
    algorithm = in_training("dcpg", N_pi=3, segments=4)
    sizes = []
    for _ in range(7):
        algorithm.rollout()
        sizes.append((algorithm.stepper.sums["auxiliary"].updates, len(algorithm.B)))
    # 3 x 4 segments, 4 a minibatch, 2 epochs
    assert sizes == [(0, 4), (0, 8), (6, 0), (0, 4), (0, 8), (6, 0), (0, 4)]


def test_paper_numbers() -> None:
    from dcpg.config.resolve import resolve

    c = resolve("dcpg", "bigfish")
    m = c.declared()
    assert c.rollouts == 1525
    assert c.rollouts // m.N_pi == 47
    assert m.policy_phase[0].data.minibatches_of(c.rollout_size) == 8
    assert c.rollout_size // 8 == 2048
    assert m.auxiliary_phase[0].data.minibatches_of(32 * 64) == 512
    assert m.auxiliary_phase[0].data.segments * c.rollout_length == 1024
    assert m.auxiliary_phase[0].epochs * 512 == 3072


def test_dead_steps_stay_out_of_policy_minibatches() -> None:
    algorithm = in_training("ppo")
    tau = algorithm.collector.sample(0)
    valid = tau.valid.clone()
    valid[1, 2] = valid[4, 0] = False
    tau = dataclasses.replace(tau, valid=valid)
    rows = tau.order(torch.Generator().manual_seed(0))
    assert len(rows) == T * N - 2
    assert not {1 * N + 2, 4 * N + 0} & set(rows.tolist())


def test_dead_steps_weigh_nothing_in_the_auxiliary_phase() -> None:
    from dcpg.seeding import generator

    results = []
    for poison in (0.0, 1e6):
        algorithm = in_training("dcpg", N_pi=1, segments=4)
        tau = algorithm.collector.sample(0)
        valid = tau.valid.clone()
        valid[1, 2] = False
        returns = tau.returns["value"].clone()
        returns[1, 2] += poison
        tau = dataclasses.replace(tau, valid=valid, returns={"value": returns})
        algorithm.B.add(0, tau)
        algorithm.remember()
        (line,) = algorithm.method.auxiliary_phase
        step(algorithm, line, algorithm.B.minibatch(algorithm.B.order(generator(0, "o"))))
        results.append(algorithm.stepper.sums["auxiliary"].values)
    assert torch.equal(*results)


def test_b_never_aliases_a_live_rollout() -> None:
    algorithm = in_training("dcpg", N_pi=2)
    taus = []
    collect = algorithm.collector.collect
    algorithm.collector.collect = lambda r: taus.append(collect(r)) or taus[-1]
    algorithm.rollout()
    before = algorithm.B.states(torch.arange(N)).copy()
    taus[0].frames.zero_()
    assert (algorithm.B.states(torch.arange(N)) == before).all()
    assert before.max() > 0


@pytest.mark.parametrize("name", [name for name, phasic in PHASIC.items() if phasic])
def test_b_keeps_exactly_what_the_method_says(name: str) -> None:
    algorithm = in_training(name, N_pi=3)
    algorithm.rollout()
    (kept,) = algorithm.B.rollouts.values()
    symbols = {"actions": {"a"}, "crosses": {"done"}, "valid": set()}
    several = len(algorithm.method.targets) > 1
    for head in algorithm.method.targets:
        symbols[f"returns/{head}"] = {f"R_{algorithm.method.encoder_of(head)}" if several else "R"}
    assert set.union({"s"}, *(symbols[tensor] for tensor in kept.tensors)) == set(algorithm.method.keep)
    assert len(kept.segments) == N


def test_old_values_are_those_recorded_while_acting() -> None:
    algorithm = in_training("dcpg")
    tau = algorithm.collector.sample(0)
    order = tau.order(torch.Generator().manual_seed(0))
    batch = tau.minibatch(order)
    assert torch.equal(batch.old_values["value"], tau.values["value"][:T].flatten()[order])


def test_segments_come_back_in_time_order_with_their_next_states() -> None:
    algorithm = in_training("ddcpg", N_pi=1, mask_boundaries=True)

    tau = algorithm.collector.sample(0)
    algorithm.B.add(0, tau)
    algorithm.remember()
    batch = algorithm.B.minibatch(torch.tensor([3, 1]))
    for j, n in enumerate([3, 1]):
        rows = torch.arange(T) * 2 + j
        assert torch.equal(batch.frames[rows], tau.frames[:T, n])
        assert torch.equal(batch.frames[batch.next_rows[rows]], tau.frames[1:, n])
        assert torch.equal(batch.actions[rows], tau.actions[:, n])
        assert torch.equal(batch.returns["value"][rows], tau.returns["value"][:, n])
        assert torch.equal(batch.crosses[rows].bool(), tau.crosses[:, n])


def test_a_segment_that_cannot_be_opened_is_found_when_B_is_restored() -> None:
    """Later it would end the run in every auxiliary phase."""
    algorithm = in_training("ddcpg", N_pi=2)
    algorithm.B.add(0, algorithm.collector.sample(0))
    kept = algorithm.B.rollouts[0]
    algorithm.B.restore(0, kept.tensors, kept.segments)
    with pytest.raises((ValueError, zstandard.ZstdError)):
        algorithm.B.restore(0, kept.tensors, [b"text", *kept.segments[1:]])
    with pytest.raises((ValueError, zstandard.ZstdError)):
        algorithm.B.restore(0, kept.tensors, [kept.segments[0][:-5], *kept.segments[1:]])


@pytest.mark.parametrize("name", METHODS)
def test_a_term_that_is_not_finite_stops_before_the_step(name: str) -> None:
    for which, its_terms in resolve(name, "bigfish").declared().adams.items():
        for term in its_terms:
            algorithm = in_training(name, N_pi=1)

            def bad(step: str, terms: Terms, which: str = which, term: str = term) -> Terms:
                if step != which:
                    return terms
                weight, function = terms[term]
                return {**terms, term: (weight, lambda out, batch: function(out, batch) * float("nan"))}

            poisoned = [
                dataclasses.replace(
                    line, terms=bad(line.name, line.terms), before={n: bad(n, t) for n, t in line.before.items()}
                )
                for line in algorithm.method.lines
            ]
            split = len(algorithm.method.policy_phase)
            algorithm.method = dataclasses.replace(
                algorithm.method, policy_phase=tuple(poisoned[:split]), auxiliary_phase=tuple(poisoned[split:])
            )
            algorithm.stepper.terms = algorithm.method.adams
            with pytest.raises(NumericalFailure, match=rf"{term} of the {which} line"):
                algorithm.rollout()
            assert all(p.isfinite().all() for p in algorithm.stepper.network.parameters())


def test_an_infinite_gradient_stops_before_the_step() -> None:
    algorithm = in_training("ppo")
    line = algorithm.method.policy_phase[0]
    # sqrt at 0: the value is finite, its gradient is not
    terms = {**line.terms, "J_V": (1.0, lambda out, batch: (out.value("value") * 0).sqrt())}
    algorithm.method = dataclasses.replace(algorithm.method, policy_phase=(dataclasses.replace(line, terms=terms),))
    algorithm.stepper.terms = algorithm.method.adams
    before = {k: v.clone() for k, v in algorithm.stepper.network.state_dict().items()}
    with pytest.raises(NumericalFailure, match="gradient of the policy line"):
        algorithm.rollout()
    assert all(torch.equal(before[k], v) for k, v in algorithm.stepper.network.state_dict().items())


def test_cursor_goes_through_every_step_and_skips_what_is_done() -> None:
    at = Cursor(line=1)
    walked = []
    for epoch, minibatch in at.remaining(1, 2):
        walked.append((epoch, minibatch))
        at.advance(3)
    assert walked == [(e, m) for e in range(2) for m in range(3)]
    assert (at.line, at.epoch, at.minibatch) == (2, 0, 0)
    assert list(at.remaining(1, 2)) == []
    resumed = Cursor(line=1, epoch=1, minibatch=2)
    walked = []
    for place in resumed.remaining(1, 2):
        walked.append(place)
        resumed.advance(3)
    assert walked == [(1, 2)]


def golden_losses(name: str) -> dict[str, float]:
    algorithm = in_training(name)
    row: dict[str, float] = {}
    for r in range(2):
        algorithm.rollout()
        row |= {f"{r}.{k}": v for k, v in algorithm.stepper.row().items()}
    return row


@pytest.mark.parametrize("name", METHODS)
def test_golden_losses(name: str) -> None:
    """Losses of two rollouts; made by `python -m tests.core.test_algorithm` when a change is meant."""
    expected = json.loads(GOLDEN.read_text())[name]
    ours = golden_losses(name)
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(ours[key], value, rtol=2e-3, atol=1e-6, err_msg=key)


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({name: golden_losses(name) for name in METHODS}, indent=1) + "\n")


class Halting(LoopObserver):
    """Ends the loop after some optimiser steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def between_optimiser_steps(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise InterruptedError


@pytest.mark.parametrize(("name", "steps", "line"), [("ppo", 1, 1), ("dcpg", 13, 2)])
def test_a_minibatch_that_the_data_does_not_have_is_no_state(name: str, steps: int, line: int) -> None:
    algorithm = in_training(name, observer=Halting(steps))
    with contextlib.suppress(InterruptedError):
        while True:
            algorithm.rollout()
    state = algorithm.state()
    assert (algorithm.cursor.line, algorithm.cursor.minibatch) == (line, 1)
    algorithm.restore(state)
    count = 2 if line == 1 else 2 * N // 2  # minibatches of tau, or of two segments
    state.plain["cursor"]["minibatch"] = count - 1
    algorithm.restore(state)
    for beyond in (count, 10**9):
        state.plain["cursor"]["minibatch"] = beyond
        with pytest.raises(ValueError, match=f"minibatch {beyond} of {count}"):
            algorithm.restore(state)
    state.plain["cursor"]["line"] = 0
    with pytest.raises(ValueError, match="the loop cannot be at"):
        algorithm.restore(state)


def test_minibatches_of_b_are_opened_ahead_by_one_thread() -> None:
    """Each exactly once per epoch, and an error in there reaches the loop."""
    algorithm = in_training("dcpg", N_pi=2, E_aux=2, segments=2)
    opened: list[tuple[str, list[int]]] = []
    minibatch = algorithm.B.minibatch

    def watched(segments: torch.Tensor) -> Batch:
        opened.append((threading.current_thread().name, segments.tolist()))
        return minibatch(segments)

    algorithm.B.minibatch = watched  # type: ignore[method-assign]
    for _ in range(2):
        algorithm.rollout()
    for epoch in (opened[:4], opened[4:]):  # 2 rollouts of 4 segments, 2 a minibatch
        assert sorted(s for _, segments in epoch for s in segments) == list(range(8))
    (thread,) = {name for name, _ in opened}
    assert thread.startswith("segments")

    def broken(segments: torch.Tensor) -> Batch:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("a segment is damaged")
        return minibatch(segments)

    algorithm.B.minibatch = broken  # type: ignore[method-assign]
    algorithm.rollout()
    with pytest.raises(ValueError, match="a segment is damaged"):
        algorithm.rollout()
