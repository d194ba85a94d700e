"""Figures that rliable and BackPACK gave on fixed inputs, so that the tests need neither.

    pip install -e '.[dev,oracles]'
    python -m tests.oracles                # computes them anew and writes tests/data/oracles.npz
    python -m tests.oracles --check FILE   # computes them anew and compares; exits 1 if they differ from FILE

The file has the inputs (scores and the indices of their resamplings; weights, states and targets), what the packages
computed from them, and the versions of the packages. The tests of `dcpg.report.statistics` and `dcpg.core.stiffness`
give the product the same inputs. Nothing here uses the product's arithmetic.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpg.core.encoders import Net
from dcpg.core.networks import Network
from tests.small import ACTIONS, declare

FILE = Path(__file__).parent / "data" / "oracles.npz"
PACKAGES = ("rliable", "arch", "numpy", "scipy", "pandas", "backpack-for-pytorch", "torch")
METRICS = ("mean", "median", "iqm", "optimality_gap")  # the order of their figures in the file
THRESHOLDS = np.round(np.linspace(-0.5, 1.5, 21), 1)  # of the profiles; many scores are equal to one

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Scores:
    """The sizes of one case; scores are rounded to `decimals`, so that there are ties."""

    runs: int
    games: int
    resamples: int = 60
    points: int = 0  # of a curve
    rivals: int = 0  # runs of the other side, of a probability of improvement
    decimals: int = 1


FINALS = {
    "one": Scores(1, 1),
    "one-run": Scores(1, 6),
    "one-game": Scores(7, 1),
    "2x2": Scores(2, 2),
    "3x5": Scores(3, 5),
    "4x17": Scores(4, 17),
    "5x8": Scores(5, 8),
    "8x16": Scores(8, 16),
    "9x4-ties": Scores(9, 4, decimals=0),
    "11x13": Scores(11, 13),
    "paper": Scores(10, 16, resamples=250),
}
IMPROVEMENTS = {
    "one": Scores(1, 1, 20, rivals=1),
    "one-run": Scores(1, 3, 20, rivals=4),
    "one-rival": Scores(5, 2, 20, rivals=1),
    "one-game": Scores(6, 1, 20, rivals=3),
    "2x7x5": Scores(2, 5, 20, rivals=7),
    "4x4x9-ties": Scores(4, 9, 20, rivals=4, decimals=0),
    "8x8x16": Scores(8, 16, 20, rivals=8),
    "9x3x4": Scores(9, 4, 20, rivals=3),
    "11x6x17": Scores(11, 17, 20, rivals=6),
    "paper": Scores(10, 16, 20, rivals=10),
}
CURVES = {
    "one": Scores(1, 1, 30, points=1),
    "one-run": Scores(1, 6, 30, points=3),
    "one-game": Scores(8, 1, 30, points=4),
    "one-point": Scores(6, 7, 30, points=1),
    "2x3": Scores(2, 3, 30, points=6),
    "5x4-ties": Scores(5, 4, 30, points=5, decimals=0),
    "8x16": Scores(8, 16, 30, points=2),
    "11x17": Scores(11, 17, 30, points=3),
    "paper": Scores(10, 16, 30, points=4),
}


@dataclass(frozen=True)
class Values:
    """A value network of a method, and how many states there are."""

    method: str
    shape: tuple[int, ...]
    states: int
    encoder: str = "impala"
    channels: tuple[int, ...] = (4, 6)
    features: int = 16

    def network(self) -> Network:
        net = Net(encoder=self.encoder, channels=self.channels, features=self.features)
        return Network(declare(self.method)[0].networks, self.shape, ACTIONS, net)


# No input of a ReLU is nearer to zero, and no maximum of a pool nearer to the next value, than 5e-5 of the deviation in
# its layer. So the product takes the same branches in single precision, on any machine; where it does not, a gradient
# jumps and stiffness is off by more than the test allows.
NETWORKS = {
    "ppo": Values("ppo", (16, 16, 3), 20),
    "ppg": Values("ppg", (17, 20, 3), 6),
    "impoola": Values("dcpg", (16, 20, 3), 7, encoder="impoola"),
    "flat": Values("dcpg", (7,), 12),
}


# -- the inputs. NumPy promises that the numbers of RandomState stay what they are.


def drawn(name: str) -> np.random.RandomState:
    return np.random.RandomState(zlib.crc32(name.encode()))


def inputs() -> dict[str, np.ndarray]:
    """All inputs, by their names in the file."""
    found: dict[str, np.ndarray] = {"thresholds": THRESHOLDS}
    for kind, cases in (("finals", FINALS), ("improvements", IMPROVEMENTS), ("curves", CURVES)):
        for name, case in cases.items():
            sides = {"": case.runs} | ({"rival_": case.rivals} if case.rivals else {})
            for side, runs in sides.items():
                key = f"{kind}/{name}/{side}"
                rng = drawn(key)
                shape = (case.games, case.points, runs) if case.points else (case.games, runs)
                found[f"{key}scores"] = np.round(rng.normal(0.5, 0.5, shape), case.decimals)
                found[f"{key}indices"] = rng.randint(0, runs, (case.games, case.resamples, runs)).astype(np.uint8)
    for name, case in NETWORKS.items():
        found |= {f"networks/{name}/{key}": value for key, value in states_and_weights(name, case).items()}
    return found


def states_and_weights(name: str, case: Values) -> dict[str, np.ndarray]:
    """Frames, targets and the weights of encoder and value head; in half precision, so that the file stays small."""
    rng, network = drawn(f"networks/{name}"), case.network()
    image = len(case.shape) == 3
    size = (case.states, *case.shape)
    found = {"frames": rng.randint(0, 256, size).astype(np.uint8) if image else rng.normal(size=size)}
    found["returns"] = rng.normal(size=case.states)
    for part, module in value_network(network).items():
        for key, p in module.state_dict().items():
            fan_in = p[0].numel() if p.dim() > 1 else 100  # a bias has deviation 0.1
            found[f"{part}.{key}"] = rng.normal(0, fan_in**-0.5, tuple(p.shape))
    return {key: v if v.dtype == np.uint8 else v.astype(np.float16) for key, v in found.items()}


def value_network(network: Network) -> dict[str, nn.Module]:
    return {"encoder": network.get_submodule(network.encoder_of["value"]), "head": network.get_submodule("value")}


# -- what the tests read


def load(path: Path = FILE) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as data:
        return dict(data)


def by_game(array: np.ndarray) -> dict[str, np.ndarray]:
    return {f"game {k}": row for k, row in enumerate(array)}


def case_of(data: Arrays, name: str) -> dict[str, np.ndarray]:
    """What the file has on one case, "finals/8x16", or "networks/ppo"."""
    return {key.removeprefix(f"{name}/"): array for key, array in data.items() if key.startswith(f"{name}/")}


def with_weights(network: Network, case: Arrays) -> Network:
    """The network with the encoder and the value head of the file."""
    for part, module in value_network(network).items():
        weights = {k.removeprefix(f"{part}."): as_tensor(v) for k, v in case.items() if k.startswith(f"{part}.")}
        module.load_state_dict(weights)
    return network


def as_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array if array.dtype == np.uint8 else array.astype(np.float32))


# -- rliable


def drawing(*sides: np.ndarray) -> AbstractContextManager[Any]:
    """Make rliable draw these indices, one side after the other; it draws arrays from numpy's global generator."""
    order = (indices.T for each in zip(*(side.swapaxes(0, 1) for side in sides), strict=True) for indices in each)

    def choice(runs: int, shape: tuple[int, ...], replace: bool) -> np.ndarray:
        indices = next(order)  # [runs, games]
        assert replace
        assert indices.shape == shape[:2]
        assert indices.max() < runs
        return np.broadcast_to(indices.reshape(*shape[:2], *[1] * (len(shape) - 2)), shape)

    return mock.patch("numpy.random.choice", choice)


def intervals(function: Callable[..., np.ndarray], scores: Any, *indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value, lower and upper end of each metric, [3, metrics], and the metrics of every resampling."""
    from rliable import library

    seen: list[np.ndarray] = []

    def recorded(*args: np.ndarray) -> np.ndarray:
        seen.append(function(*args))
        return seen[-1]

    reps = indices[0].shape[1]
    with drawing(*indices):
        value, ends = library.get_interval_estimates({"x": scores}, recorded, reps=reps)
    return np.stack([value["x"], *ends["x"]]), np.stack(seen[-reps:])


def figures_of_rliable(data: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    from rliable import library, metrics

    functions = [getattr(metrics, f"aggregate_{name}") for name in METRICS]
    for name in FINALS:
        case = case_of(data, f"finals/{name}")
        scores, indices = case["scores"].T, case["indices"]  # rliable has [runs, games]
        found, resampled = intervals(lambda s: np.array([f(s) for f in functions]), scores, indices)
        yield f"finals/{name}/metrics", found
        yield f"finals/{name}/resampled", resampled
        with drawing(indices):
            value, ends = library.create_performance_profile({"x": scores}, data["thresholds"], reps=indices.shape[1])
        yield f"finals/{name}/profile", np.stack([value["x"], *ends["x"]])
    for name in IMPROVEMENTS:
        case = case_of(data, f"improvements/{name}")
        found, resampled = intervals(
            lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
            [case["scores"].T, case["rival_scores"].T],
            case["indices"],
            case["rival_indices"],
        )
        yield f"improvements/{name}/probability", found[:, 0]
        yield f"improvements/{name}/resampled", resampled[:, 0]
    for name, sizes in CURVES.items():
        case = case_of(data, f"curves/{name}")
        scores = case["scores"].transpose(2, 0, 1)  # [runs, games, points]
        at_each = lambda s: np.array([f(s[..., point]) for f in functions for point in range(s.shape[-1])])
        found, resampled = intervals(at_each, scores, case["indices"])
        yield f"curves/{name}/metrics", found.reshape(3, len(METRICS), sizes.points)
        yield f"curves/{name}/resampled", resampled.reshape(-1, len(METRICS), sizes.points)


# -- BackPACK


class Twin(nn.Module):
    """A value network of plain layers, which BackPACK can follow, in double precision."""

    def __init__(self, case: Arrays) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for key in case:
            name, _, kind = key.rpartition(".")
            if kind == "weight":
                self.layers[name.replace(".", "_")] = layer_of(case[key], case[f"{name}.bias"])

    def through(self, name: str, x: Tensor) -> Tensor:
        out: Tensor = self.layers[name](x)
        return out

    def forward(self, frames: Tensor, mean: bool) -> Tensor:
        return self.through("head", self.image(frames, mean) if frames.dim() == 4 else self.flat(frames)).squeeze(1)

    def flat(self, x: Tensor) -> Tensor:
        return torch.tanh(self.through("encoder_fc1", torch.tanh(self.through("encoder_fc0", x))))

    def image(self, frames: Tensor, mean: bool) -> Tensor:
        x = (frames / 255).permute(0, 3, 1, 2)
        for k in itertools.count():
            if f"encoder_stack{k}_conv" not in self.layers:
                break
            x = F.max_pool2d(self.through(f"encoder_stack{k}_conv", x), 3, stride=2, padding=1)
            for block in ("block0", "block1"):
                inside = self.through(f"encoder_stack{k}_{block}_conv1", torch.relu(x))
                x = x + self.through(f"encoder_stack{k}_{block}_conv2", torch.relu(inside))
        x = torch.relu(x)
        return torch.relu(self.through("encoder_fc", x.mean((2, 3)) if mean else x.flatten(1)))


def layer_of(weight: np.ndarray, bias: np.ndarray) -> nn.Module:
    out, into = weight.shape[:2]
    layer = nn.Conv2d(into, out, 3, padding=1) if weight.ndim == 4 else nn.Linear(into, out)
    layer.load_state_dict({"weight": as_tensor(weight), "bias": as_tensor(bias)})
    return layer.double()


def pairs(rows: Tensor) -> float:
    """The mean cosine over all pairs, one by one."""
    cosines = [F.cosine_similarity(a, b, dim=0) for a, b in itertools.combinations(rows, 2)]
    return float(torch.stack(cosines).mean())


def figures_of_backpack(data: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    import backpack
    from backpack.extensions import BatchGrad

    warnings.filterwarnings("ignore", "Extension saving to grad_batch")  # the twin itself is not a layer
    for name, sizes in NETWORKS.items():
        case = case_of(data, f"networks/{name}")
        twin = backpack.extend(Twin(case))
        frames, returns = (torch.from_numpy(case[key].astype(np.float64)) for key in ("frames", "returns"))
        errors = twin(frames.requires_grad_(), sizes.encoder == "impoola") - returns
        with backpack.backpack(BatchGrad()):
            (0.5 * errors.square().sum()).backward()
        rows = torch.cat([p.grad_batch.flatten(1) for p in twin.parameters()], 1)
        plain = rows * torch.sign(errors.detach())[:, None]
        for count in (2, sizes.states):
            yield f"networks/{name}/first{count}", np.array([pairs(rows[:count]), pairs(plain[:count])])


# -- the command


def computed() -> dict[str, np.ndarray]:
    """Everything that the file has."""
    given = inputs()
    versions = {package: version(package) for package in PACKAGES}
    figures = [*figures_of_rliable(given), *figures_of_backpack(given)]
    return {**given, **dict(figures), "versions": np.array(json.dumps(versions))}


def differences(found: Arrays, stored: Arrays) -> list[str]:
    """Where the arrays differ by more than 1e-12; the versions of the packages may."""
    differ = [f"{key} is in one of them only" for key in sorted(set(found) ^ set(stored))]
    for key in sorted((set(found) & set(stored)) - {"versions"}):
        new, old = found[key], stored[key]
        if new.shape != old.shape or new.dtype != old.dtype:
            differ.append(f"{key} is {new.dtype} {new.shape}, and was {old.dtype} {old.shape}")
        elif not np.allclose(new, old, rtol=1e-12, atol=1e-12):
            differ.append(f"{key} differs by up to {np.abs(new.astype(float) - old).max():.1e}")
    return differ


def main(arguments: list[str]) -> int:
    """Write the file, or compare; 1 if something differs."""
    if not arguments:
        np.savez_compressed(FILE, **computed())
        print(f"{FILE.name}: {FILE.stat().st_size / 1000:.0f} kB")
        return 0
    if len(arguments) != 2 or arguments[0] != "--check":
        print(__doc__)
        return 2
    try:
        stored = load(Path(arguments[1]))
    except (OSError, ValueError) as error:
        print(f"{arguments[1]} is not a file of figures ({error}).")
        return 2
    found = computed()
    differ = differences(found, stored)
    print("\n".join(differ) or f"{len(found)} arrays agree.")
    print(f"made with {stored.get('versions')}; here {found['versions']}")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
