"""What runs only on a GPU, as far as a machine without one can tell: mixed devices, and equal results on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from dcpg.core.actor import Actor
from dcpg.core.algorithm import Algorithm
from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.batch import Batch
from dcpg.core.loader import Loader
from dcpg.core.networks import Network, Outputs
from dcpg.methods import METHODS, Method
from tests.small import ACTIONS, SHAPE, N, bare, declare, in_training, network_of, rollout_of

CUDA = torch.device("cuda:0")  # a fake one needs its index


class Holder(torch.nn.Module):
    """Runs any function while the network has other weights."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, function: Any) -> Any:
        return function()


class Subscripts(TorchFunctionMode):
    """x[...] by operators of their own: the subscript itself asks for a real GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        x, key = args
        indices: list[Any] = []
        for part in key if isinstance(key, tuple) else (key,):
            if part is Ellipsis:
                indices += [None] * (x.dim() - len([k for k in key if k is not None and k is not Ellipsis]))
            elif part is None:
                x = x.unsqueeze(len(indices))
                indices.append(None)
            elif isinstance(part, slice):
                x = torch.ops.aten.slice(x, len(indices), part.start, part.stop)
                indices.append(None)
            elif isinstance(part, int):
                x = torch.ops.aten.select(x, len(indices), part)
            else:
                indices.append(part)
        return torch.ops.aten.index(x, indices) if any(i is not None for i in indices) else x


@contextmanager
def fake_cuda(**options: Any) -> Iterator[FakeTensorMode]:
    """Tensors without contents, which know their device and refuse operations between two devices."""
    with FakeTensorMode(**options) as mode, torch.no_grad(), Subscripts():
        yield mode


def on_fake_cuda(network: Network, function: Any) -> Any:
    weights = {
        f"network.{name}": torch.empty_strided(p.shape, p.stride(), device=CUDA)
        for name, p in network.named_parameters()
    }
    return functional_call(Holder(network), weights, (function,))


def faked(batch: Batch, mode: FakeTensorMode) -> Batch:
    """A minibatch on the CPU as fake tensors."""
    return batch._map(mode.from_tensor)


def minibatches(name: str, precision: str = "fp32") -> tuple[Method, Network, list[tuple[Any, list[Batch]]]]:
    """A method, its network, and a drawn minibatch of every line (of every augmentation); "METHOD, SETTING=VALUE"."""
    name, _, option = name.partition(", ")
    method, settings = declare(name, dict([option.split("=")]) if option else {}, N_pi=1)
    network = network_of(method, precision=precision)
    algorithm = bare(method, network, settings)
    tau = rollout_of(method, network)
    if method.auxiliary_phase:
        algorithm.B.add(0, tau)
        algorithm.remember()
    found = []
    for line in method.lines:
        for augmentation in AUGMENTATIONS if method.augmented else [""]:
            data = algorithm.B if line in method.auxiliary_phase else tau.with_augmentation(augmentation)
            found.append((line, algorithm.loader.open(line, data, 0, 1).load(0, 0)))
    return method, network, found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [*METHODS, "ddcpg, algorithm.negatives=B"])
def test_no_line_mixes_devices(name: str, precision: str) -> None:
    """Every term of every line on a fake GPU: one value per sample, there."""
    _, network, found = minibatches(name, precision)
    for line, batches in found:
        with fake_cuda() as mode:
            for terms in line.adams.values():
                batch = faked(batches[0], mode).to(CUDA)

                def terms_of(batch: Batch = batch, terms: Any = terms) -> dict[str, torch.Tensor]:
                    out = Outputs(network, batch, 5)
                    return {term: function(out, batch) * batch.valid for term, (_, function) in terms.items()}

                for term, values in on_fake_cuda(network, terms_of).items():
                    assert (values.device, tuple(values.shape)) == (CUDA, (len(batch),)), (line.name, term)


def test_a_tensor_that_was_left_on_the_cpu_is_found() -> None:
    """The check itself: a batch whose actions stay on the CPU is refused."""
    _, network, found = minibatches("ppo")
    line, batches = found[0]
    with fake_cuda() as mode:
        batch = faked(batches[0], mode)
        mixed = dataclasses.replace(batch.to(CUDA), actions=batch.actions)
        term = line.terms["J_pi"][1]
        with pytest.raises(RuntimeError, match=r"(?i)device"):
            on_fake_cuda(network, lambda: term(Outputs(network, mixed, 5), mixed))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_acting_moves_frames_there_and_results_back(name: str, precision: str) -> None:
    method, _ = declare(name)
    network = network_of(method, precision=precision)
    actor = Actor(network, tuple(method.targets), 3, CUDA)
    with fake_cuda(allow_non_fake_inputs=True):
        log_policy, values = on_fake_cuda(network, lambda: actor(np.zeros((N, *SHAPE), np.uint8)))
    assert log_policy.device.type == "cpu"
    assert tuple(log_policy.shape) == (N, ACTIONS)
    assert {v.device.type for v in values.values()} == {"cpu"}


class Moves(TorchFunctionMode):
    """Real tensors on the CPU become fake ones when they are moved to the fake GPU."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode, self.moved = mode, list[torch.Size]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and args[1] == CUDA:
            if isinstance(args[0], FakeTensor):  # there already
                return args[0]
            self.moved.append(args[0].shape)
            with self.mode:
                return self.mode.from_tensor(args[0]).to(CUDA)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["ppo", "idaac", "ucb-drac"])
def test_minibatches_of_tau_come_from_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """tau's frames move once; afterwards minibatches and draws move rows and numbers, but no frames."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    method, _ = declare(name)
    tau = rollout_of(method, network_of(method))
    loader = Loader(seed=3, num_envs=N, actions=ACTIONS, device=CUDA)
    line = method.policy_phase[0]
    with Moves(FakeTensorMode(allow_non_fake_inputs=True)) as moves:
        there = tau.on(CUDA)
        assert moves.moved == [tau.frames.shape]
        (batch,) = loader.open(line, there, 0, 1).load(0, 0)
    assert all(shape == (0,) or len(shape) < 4 for shape in moves.moved[1:])
    tensors = [getattr(batch, f.name) for f in dataclasses.fields(batch)]
    tensors += [t for d in tensors if isinstance(d, dict) for t in d.values()]
    assert {t.device for t in tensors if isinstance(t, torch.Tensor)} == {CUDA}
    assert tuple(batch.frames.shape) == (len(batch), *SHAPE)
    if method.needs_levels:
        assert batch.other_frames.shape == batch.frames.shape


def test_a_rollout_stays_where_it_is_on_the_cpu() -> None:
    method, _ = declare("ppo")
    tau = rollout_of(method, network_of(method))
    assert tau.on(torch.device("cpu")) is tau


class Elsewhere(Algorithm):
    """tau's frames as a copy, as on a device of its own."""

    def optimise(self, number: int, line: Any, data: Any) -> None:
        if data is self.tau:
            data = dataclasses.replace(data, frames=data.frames.clone())
        super().optimise(number, line, data)


@pytest.mark.parametrize("name", ["ddcpg", "idaac"])
@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_how_a_gpu_is_fed_changes_no_number(name: str, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments opened by several threads, batches staged twice, tau's frames elsewhere: the same weights, exactly."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)

    def weights(algorithm: Algorithm) -> dict[str, torch.Tensor]:
        for _ in range(2):
            algorithm.rollout()
        return algorithm.stepper.network.state_dict()

    expected = weights(in_training(name))
    fed = in_training(name)
    fed.__class__ = Elsewhere
    staged = []

    class Fed(Loader):
        def staged(self, batch: Batch) -> Batch:
            staged.append(batch)
            return batch.pinned()

    fed.loader = Fed(seed=3, num_envs=N, actions=ACTIONS, device=torch.device("cpu"), ahead=ahead)
    found = weights(fed)
    assert staged
    assert all(torch.equal(found[k], expected[k]) for k in expected)


def test_segments_are_opened_ahead_in_order_and_each_once() -> None:
    algorithm = in_training("dcpg", N_pi=2, segments=1)
    opened = []
    algorithm.rollout()
    algorithm.B.old_log_policy = torch.zeros(len(algorithm.B), 6, ACTIONS)
    loader = Loader(seed=3, num_envs=N, actions=ACTIONS, device=torch.device("cpu"), ahead=2)
    line = algorithm.method.auxiliary_phase[0]
    minibatches = loader.open(line, algorithm.B, 0, 2)
    real = minibatches._open
    minibatches._open = lambda number: (opened.append(number), real(number))[1]  # type: ignore[method-assign]
    assert len(minibatches) == 4
    first = minibatches.load(0, 0)
    assert len(first) == 1
    loader.opener.shutdown(wait=True)
    assert sorted(opened) == [0, 1, 2]
