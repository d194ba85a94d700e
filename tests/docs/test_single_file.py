"""The single-file DCPG of the documentation is held to the library: two implementations, one result."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcpg

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "dcpg_single_file.py"
MAX_LINES = 350
TOLERANCE = 1e-4

# game, seed, rollouts, settings. The second case changes every number that the algorithm has, so that none can be
# mistaken for another or be left out; its last rollout has no auxiliary phase.
CASES = {
    "tiny": ("starpilot", 0, 6, {}),
    "other numbers": (
        "dodgeball",
        1,
        5,
        {
            "gamma": 0.9,
            "lam": 0.8,
            "clip": 0.02,
            "entropy": 0.05,
            "learning_rate": 5e-3,
            "adam_eps": 1e-4,
            "max_grad_norm": 0.2,
            "minibatches": 4,
            "E_pi": 2,
            "E_aux": 3,
            "segments": 2,
            "beta_V": 0.5,
            "beta_pi": 0.7,
        },
    ),
}


@pytest.fixture
def script() -> Iterator[ModuleType]:
    """The script as a module, loaded anew for every test."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("dcpg_single_file", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def add_up_as_the_library_does(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the script's convolutions sum the gradients of their biases in the library's order.

    The library sums them by itself (docs/performance.md), which rounds differently from what PyTorch's convolutions do.
    That is the only numerical difference, but it is enough: after some ten updates, a unit near the kink of its ReLU is
    on for one of them and off for the other, and from there differences of 1e-7 grow to 1e-2. With the same order of
    summation, the weights are equal to the last bit. So the comparison is also sensitive to changes that only round
    differently, on either side: another order of the samples in a minibatch, for example, or Adam that is not fused.
    If it fails with deviations that start near 1e-7 and grow, that is the reason to look for.
    """

    def convolution(self: nn.Conv2d, x: Tensor) -> Tensor:
        bias = self.bias
        assert bias is not None
        constant = bias.detach()
        return F.conv2d(x, self.weight, constant, padding=self.padding) + (bias - constant)[:, None, None]  # adds 0

    def residual(self: Any, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
        return plain_residual(self, x)

    plain_residual = script.Residual.forward
    monkeypatch.setattr(nn.Conv2d, "forward", convolution)
    monkeypatch.setattr(script.Residual, "forward", residual)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_are_the_library_s(
    case: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, seed, rollouts, numbers = CASES[case]
    h = dataclasses.replace(script.SIZES["tiny"], **numbers)
    steps = rollouts * h.N * h.T
    settings = {f"algorithm.{name}": value for name, value in numbers.items()}
    settings |= {"evaluation.episodes": 1, "evaluation.max_steps": 1}  # not what is compared here
    run = dcpg.train("dcpg", game=game, preset="tiny", steps=steps, seed=seed, out=tmp_path / "run", settings=settings)
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == rollouts
    assert any(row["episode_returns"] for row in rows), "no episode ended: this case does not test enough"

    add_up_as_the_library_does(script, monkeypatch)
    agent = script.Agent(h, seed)
    worst = 0.0
    for number, phase in enumerate(script.train(agent, game, h, steps, seed)):
        of_phase = rows[number * h.N_pi : (number + 1) * h.N_pi]
        assert phase.steps == of_phase[-1]["steps"]
        assert phase.finished == [episode for row in of_phase for episode in row["episode_returns"]]
        assert bool(phase.auxiliary) == ("auxiliary.J_V" in of_phase[-1])
        for row, means in zip(of_phase, phase.policy, strict=True):
            own = {f"policy.{name}": value for name, value in means.items() if name != "reward_variance"}
            own["reward_variance"] = means["reward_variance"]
            if row is of_phase[-1]:
                own |= {f"auxiliary.{name}": value for name, value in phase.auxiliary.items()}
            library = {name: row[name] for name in own}
            # relative: some terms are as small as 1e-6; the absolute part is the rounding of a mean of numbers near 1
            assert own == pytest.approx(library, rel=TOLERANCE, abs=1e-7)
            worst = max(worst, *(abs(own[name] - library[name]) for name in own))

    trained, library_trained = agent.state_dict(), dcpg.load(run).network.state_dict()
    assert trained.keys() == library_trained.keys()
    deviation = max(float((trained[name] - weight).abs().max()) for name, weight in library_trained.items())
    print(f"{case}: largest deviation {worst:.1e} of a term or norm, {deviation:.1e} of a weight")
    assert deviation < TOLERANCE


def test_order_of_summation_is_all_that_is_replaced(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = script.Agent(script.SIZES["tiny"], 0)
    frames = torch.randint(0, 256, (16, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def outputs_and_gradients() -> list[Tensor]:
        agent.zero_grad()
        log_pi, V = agent(frames)
        (log_pi[:, 0].mean() + V.square().mean()).backward()
        return [log_pi.detach(), V.detach(), *(p.grad.clone() for p in agent.parameters() if p.grad is not None)]

    plain = outputs_and_gradients()
    add_up_as_the_library_does(script, monkeypatch)
    replaced = outputs_and_gradients()
    assert torch.equal(plain[0], replaced[0])
    assert torch.equal(plain[1], replaced[1])
    assert len(plain) == len(replaced) == 2 + len(list(agent.parameters()))
    for a, b in zip(plain, replaced, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_paper_size(script: ModuleType) -> None:
    agent = script.Agent(script.SIZES["paper"], 0)
    assert sum(p.numel() for p in agent.parameters()) == 626_256


def test_it_is_short_and_stands_on_little() -> None:
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= MAX_LINES
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(node.module or "")
    ours = {module for module in modules if module.split(".")[0] == "dcpg"}
    assert ours == {"dcpg.envs.procgen", "dcpg.seeding"}


@pytest.mark.faults
def test_it_runs_as_a_script() -> None:
    options = ["--game", "dodgeball", "--size", "tiny", "--steps", "640", "--episodes", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    *phases, last = done.stdout.splitlines()
    assert [line.split()[0] for line in phases] == ["256", "512", "640"]
    assert all("J_pi" in line and "C_V" in line for line in phases)
    assert ["J_V" in line for line in phases] == [True, True, False]  # the run ends within a policy phase
    assert last.startswith("unseen levels: mean return")
