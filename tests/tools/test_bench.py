"""`dcpg bench`: what it counts and what its figures are made of; the naive path agrees with the product's."""

from __future__ import annotations

import json
import platform
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dcpg.config.resolve import resolve
from dcpg.core.encoders import Impala, Net
from dcpg.core.networks import Network, Outputs
from dcpg.machine.devices import has_bf16
from dcpg.seeding import generator
from dcpg.tools import bench, measurement
from dcpg.tools.measurement import Measurement
from tests.small import bare, declare, network_of, rollout_of, step, whole


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative, as vectors."""
    return float((ours - theirs).double().norm() / theirs.double().norm())


def test_the_naive_path_agrees_with_the_chunked_one() -> None:
    """Features and gradients of the paper's encoder: plain layers on all frames, against kernels in chunks."""
    encoder = Impala((64, 64, 3), Net())
    encoder.initialise(generator(0, "encoder"))
    frames = torch.randint(0, 256, (20, 64, 64, 3), generator=generator(0, "frames"), dtype=torch.uint8)
    weight = torch.randn(20, 256, generator=generator(0, "weight"))
    plain = measurement.contiguous(encoder)
    assert all(p.is_contiguous() for p in plain.parameters())
    naive = measurement.naive_features(plain, frames)
    (naive * weight).sum().backward()
    parts = []
    for part, w in zip(frames.split(7), weight.split(7), strict=True):
        features = encoder(part)
        (features * w).sum().backward()
        parts.append(features.detach())
    assert distance(torch.cat(parts), naive.detach()) < 1e-5
    for (name, ours), theirs in zip(encoder.named_parameters(), plain.parameters(), strict=True):
        assert distance(ours.grad, theirs.grad) < 1e-5, name


@pytest.mark.parametrize("name", ["ppo", "ppg", "dcpg", "ddcpg"])
def test_a_whole_naive_minibatch_has_the_loss_and_gradients_of_the_loops_step(name: str) -> None:
    """Each line: plain layers and plain means over the minibatch, one backward, against the loop's chunks of 5."""
    method, settings = declare(name, N_pi=1)
    network, twin = network_of(method), network_of(method)
    algorithm = bare(method, network, settings, chunk=5)
    tau = rollout_of(method, network)
    algorithm.B.add(0, tau)
    algorithm.remember()
    # away from the parameters that acted, where the terms that keep a network close to them have no slope
    with torch.no_grad():
        for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
            noise = 0.02 * torch.randn(ours.shape, generator=generator(0, "noise"))
            ours.add_(noise)
            theirs.add_(noise)
    twin.to(memory_format=torch.contiguous_format)
    twin.encode = lambda encoder, frames, chunk: measurement.naive_features(twin.get_submodule(encoder), frames)
    for line in method.lines:
        batch = whole(algorithm, line, tau)
        out = Outputs(twin, batch, len(batch) * 2)
        loss = sum(weight * term(out, batch).mean() for weight, term in line.terms.values())
        twin.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), settings.max_grad_norm)
        before = {k: v.clone() for k, v in network.state_dict().items()}
        step(algorithm, line, batch)
        network.load_state_dict(before)  # the next line is compared at the same parameters
        theirs = {k: p.grad for k, p in twin.named_parameters()}
        for k, p in network.named_parameters():
            assert (p.grad is None) == (theirs[k] is None), k
            if p.grad is not None:
                assert distance(p.grad, theirs[k]) < 1e-5, k
        assert float(algorithm.stepper.sums[line.name].values[-1]) == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "mflop"),
    # acting 61; a training pass 183 an epoch; B's states once through the policy, 61
    [
        ("ppo", 61 + 3 * 183),
        ("dcpg", 61 + 183 + 61 + 6 * 183),
        ("ppg", 2 * 61 + 2 * 183 + 61 + 6 * 2 * 183),
        ("ddcpg", 61 + 183 + 61 + 6 * 183 * 17 / 16),  # s' of the last step: 17 frames for 16 samples
        ("daac", 2 * 61 + 183 + 9 * 183),
        ("idaac", 2 * 61 + 2 * 183 + 2 * 61 + 9 * 183),  # pairs, and once more for the classifier without a gradient
        ("ucb-drac", 61 + 3 * 2 * 183),
    ],
)
def test_passes_are_counted(name: str, mflop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "encoder_mflop", lambda network, shape: 61.0)
    monkeypatch.setattr(measurement, "matmul_gflops", lambda precision, device: 100.0)
    monkeypatch.setattr(measurement, "NAIVE_FRAMES", 8)
    result = Measurement(resolve(name, bench.GAME, preset="tiny")).costs()
    assert result["mflop_per_step"] == pytest.approx(mflop)
    ms = result["ms_per_step"]
    assert ms["cycle"] == pytest.approx(sum(v for k, v in ms.items() if k != "cycle"))
    assert result["steps_per_s"] == pytest.approx(1000 / ms["cycle"])
    assert result["ratio"]["cycle"] == pytest.approx(result["mflop_per_step"] / ms["cycle"] / 100)
    encoders = len(resolve(name, "maze").declared().networks)
    assert result["ratio"]["acting"] == pytest.approx(61 * encoders / ms["acting"] / 100)
    if not ms["auxiliary"]:  # else pi_old's outputs are in that part too
        share = mflop - 61 * encoders
        assert result["ratio"]["training_pass"] == pytest.approx(share / ms["policy"] / 100, rel=2e-3)
    assert result["matmul_gflops"] == pytest.approx(100)
    assert all(v >= 0 for v in ms.values())
    assert (ms["auxiliary"] > 0) == bool(resolve(name, "maze").declared().auxiliary_phase)
    assert result["peak_memory_gb"] > 0.1


def test_the_papers_encoder_has_61_mflop() -> None:
    method, _ = declare("ppo")
    network = Network(method.networks, (64, 64, 3), 15, Net())
    assert measurement.encoder_mflop(network, (64, 64, 3)) == pytest.approx(measurement.FORWARD, rel=0.005)


@pytest.mark.faults
def test_the_command_prints_the_contract() -> None:
    command = [sys.executable, "-m", "dcpg", "bench", "--method", "dcpg", "--preset", "tiny"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"matmul_gflops", "threads", "cpu"} <= set(found["machine"])
    method = found["methods"]["dcpg"]
    assert set(method) >= {
        "steps_per_s", "ms_per_step", "mflop_per_step", "ratio", "speedup_over_naive", "peak_memory_gb",
    }  # fmt: skip
    assert set(method["ms_per_step"]) >= {"acting", "environment", "policy", "auxiliary", "segments", "cycle"}
    assert set(method["ratio"]) >= {"training_pass", "acting", "cycle"}
    assert method["speedup_over_naive"] > 0
    precisions = ["fp32", "bf16"] if has_bf16(torch.device("cpu")) else ["fp32"]
    said = [line for line in done.stderr.splitlines() if line.startswith("Measuring")]
    assert said == [f"Measuring dcpg in {precision} (1 of 1) ..." for precision in precisions]
    assert ("Only float32 is measured" in done.stderr) == (precisions == ["fp32"])
    assert list(method["precisions"]) == precisions
    for figures in method["precisions"].values():
        assert set(figures) >= {"ms_per_step", "ratio", "matmul_gflops"}
    assert method["precisions"]["fp32"]["ms_per_step"] == method["ms_per_step"]
    text = bench.shown(found)
    assert "dcpg" in text
    assert f"{method['mflop_per_step']:.2f}" in text
    memory = subprocess.run([*command, "--memory"], capture_output=True, text=True)
    assert memory.returncode == 0, memory.stderr
    assert "of it B" in memory.stdout


@pytest.mark.parametrize(
    ("settings", "native", "measured", "own"),
    [
        ({}, True, ["fp32", "bf16"], "fp32"),
        ({}, False, ["fp32"], "fp32"),
        ({"machine.precision": "bf16"}, True, ["bf16", "fp32"], "bf16"),
        ({"machine.precision": "bf16"}, False, ["bf16", "fp32"], "bf16"),
        ({"machine.precision": "auto"}, True, ["bf16", "fp32"], "bf16"),  # with the preset laptop
    ],
)
def test_which_precisions_are_measured(
    settings: dict[str, str], native: bool, measured: list[str], own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 where it is native or asked for; a method's own figures are in the precision that the settings name."""
    monkeypatch.setattr(bench, "has_bf16", lambda device: native)
    monkeypatch.setattr("dcpg.machine.automatic.bf16_pays", lambda device: native)

    def figures(asked: dict[str, Any]) -> dict[str, Any]:
        precision = asked["settings"]["machine.precision"]
        ms, gflops = {"fp32": (10.0, 175.0), "bf16": (7.4, 150.0)}[precision]
        return {
            "machine": {"cpu": "x", "threads": 2}, "ms_per_step": dict.fromkeys([*measurement.PARTS, "cycle"], ms),
            "ratio": dict.fromkeys(("training_pass", "acting", "cycle"), 0.5), "steps_per_s": 1e3 / ms,
            "mflop_per_step": 1403.0, "speedup_over_naive": 3.0, "peak_memory_gb": 1.0, "matmul_gflops": 2 * gflops,
            "matmul_fp32_gflops": gflops, "precision": precision,
        }  # fmt: skip

    monkeypatch.setattr(bench, "_measured", figures)
    found = bench.bench(["dcpg"], "laptop", settings, memory=False)
    assert list(found["methods"]["dcpg"]["precisions"]) == measured
    assert found["methods"]["dcpg"]["precision"] == own
    last = bench.shown(found).splitlines()[-1]
    if len(measured) == 2:
        share = 7.4 * 150 / (10 * 175)
        assert last == f"a cycle in bf16 takes, of its time in fp32 at equal rates:   dcpg {share:.2f}"


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_matrix_multiply_is_in_the_precision_that_is_measured(
    precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, multiply = [], torch.mm
    monkeypatch.setattr(measurement, "MATRIX", 64)
    monkeypatch.setattr(torch, "mm", lambda a, b, out: seen.append((a.dtype, out.dtype)) or multiply(a, b, out=out))
    assert measurement.matmul_gflops(precision) > 0
    assert set(seen) == {(dtype, dtype)}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_freed_memory_is_kept() -> None:
    """glibc's own account, in a new process: six tensors of 31 MB come from its heap, which keeps them when freed."""
    code = """
import ctypes, sys
import torch
from dcpg.machine.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
class Account(ctypes.Structure):  # struct mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d keepcost".split()]
account = ctypes.CDLL(None).mallinfo2
account.restype = Account
before = account()
tensors = [torch.ones(31 * 2**18) for _ in range(6)]
mapped = account().hblks - before.hblks
del tensors
print(mapped, account().arena - before.arena)
"""
    for way, expected in (("keep", (0, 186)), ("give", (6, 0))):
        done = subprocess.run([sys.executable, "-c", code, way], capture_output=True, text=True, check=True)
        mapped, heap = map(int, done.stdout.split())
        assert (mapped, round(heap / 2**20, -1)) == (expected[0], round(expected[1], -1)), way


@pytest.mark.parametrize("num_envs", [2, 6])
def test_minibatches_of_b_have_their_true_size_when_a_rollout_is_not_whole_minibatches(
    num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 segments of 16 steps, from as many rollouts as that takes."""
    monkeypatch.setattr(measurement, "matmul_gflops", lambda precision, device: 100.0)
    settings = {"env.num_envs": num_envs, "algorithm.minibatches": 2}
    m = Measurement(resolve("dcpg", bench.GAME, preset="tiny", settings=settings))
    works = list(m.optimisation())
    (line,) = m.method.auxiliary_phase
    assert [len(batch.segments) for batch in m.load(line)] == [4]
    assert [work.per_step for work in works if work.trains and work.part == "auxiliary"] == [6 / 64]


def test_the_script_beside_the_page_measures_stiffness() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs/measure_performance.py"))
    passes, seconds = script["stiffness_cost"](Measurement(resolve("dcpg", bench.GAME, preset="tiny")))
    assert passes > 0
    assert seconds > 0


def test_the_script_beside_the_page_compares_precisions() -> None:
    """The same steps in another chunk differ by rounding, in bfloat16 by more, and less than the steps themselves."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs/measure_performance.py"))
    found = script["parted"]("tiny", 12)
    small, rounded, unmoved = (found[k] for k in ("float32 in smaller chunks", "bfloat16", "before these steps"))
    for a, b, c in zip(small, rounded, unmoved, strict=True):
        assert a < b < c
    assert unmoved[2] == pytest.approx(1)
