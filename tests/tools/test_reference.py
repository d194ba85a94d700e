"""`dcpg doctor --device`: the stored cases hold here, and a device whose numbers are wrong is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from dcpg.cli.app import app
from dcpg.core import kernels
from dcpg.core.stepper import Stepper
from dcpg.errors import NumericalFailure
from dcpg.machine import devices
from dcpg.methods import METHODS
from dcpg.tools import doctor, reference
from dcpg.tools.reference import TOLERANCE, case, difference, stored_numbers

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_case_that_holds_here(name: str) -> None:
    stored = stored_numbers()[name]
    assert difference(case(name, CPU), stored) < TOLERANCE / 10
    updates = [vector for vector in stored if len(vector) == reference.DIRECTIONS]
    assert len(updates) > 3
    assert all(any(vector) for vector in stored)  # nothing is zero, so every relative difference means something


def test_every_augmentation_and_both_kinds_of_data_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    sample = reference.MadeUp.sample
    monkeypatch.setattr(
        reference.MadeUp, "sample", lambda self, k: (tau := sample(self, k), seen.add(tau.augmentation))[0]
    )
    case("ucb-drac", CPU)
    assert len(seen) == 8
    lines = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda self, name, *a, **k: (lines.append(name), step(self, name, *a, **k))[1])
    case("ddcpg", CPU)
    assert set(lines) == {"policy", "auxiliary"}


def lossy(convolution: Any) -> Any:
    """As TF32 does it: inputs and weights with 10 bits."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    return lambda x, w, *more, **named: convolution(rounded(x.contiguous()), rounded(w.contiguous()), *more, **named)


@pytest.mark.parametrize("name", ["ppo", "ddcpg"])
def test_a_device_that_computes_with_fewer_bits_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.F, "conv2d", lossy(F.conv2d))
    assert difference(case(name, CPU), stored_numbers()[name]) > TOLERANCE


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = kernels._through_relu_
    monkeypatch.setattr(kernels, "_through_relu_", lambda grad, output: relu(grad, output).mul_(1.05))
    assert difference(case("dcpg", CPU), stored_numbers()["dcpg"]) > TOLERANCE


def test_other_vectors_are_no_match() -> None:
    assert difference([[1.0]], [[1.0], [2.0]]) == float("inf")
    assert difference([[1.1, 0.0]], [[1.0, 0.0]]) == pytest.approx(0.1)
    for bad in (float("nan"), float("inf")):  # wherever it is
        assert difference([[1.0], [bad]], [[1.0], [2.0]]) == difference([[bad], [2.0]], [[1.0], [2.0]]) == float("inf")


def test_numbers_that_are_not_finite_are_one_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "stored_numbers", lambda: {name: [[1.0]] for name in ("ppo", "dcpg")})

    def failing(name: str, device: torch.device) -> list[list[float]]:
        if name == "ppo":
            raise NumericalFailure("Not finite: J_pi")
        return [[1.0]]

    monkeypatch.setattr(reference, "case", failing)
    assert dict(reference.differences(CPU)) == {"ppo": float("inf"), "dcpg": 0.0}


def test_the_command_says_for_each_method_whether_its_numbers_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "checks", lambda: [("python", True, "3")])
    monkeypatch.setattr(reference, "differences", lambda device: iter([("ppo", 1e-7), ("dcpg", 0.5)]))
    done = CliRunner().invoke(app, ["doctor", "--device", "cpu"])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["ok", "ppo", "on", "cpu", "off", "by", "1.0e-07,", "at", "most", "0.005", "allowed"]
    assert lines[2].startswith("BAD  dcpg on cpu")
    for device in ("mps", "cuda", "abacus"):
        done = CliRunner().invoke(app, ["doctor", "--device", device])
        assert done.exit_code != 0


def test_tf32_is_off_while_the_cases_run_and_on_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn, seen = torch.backends.cudnn, []
    monkeypatch.setattr(cudnn, "allow_tf32", True)
    monkeypatch.setattr(cudnn, "deterministic", False)
    monkeypatch.setattr(reference, "case", lambda name, device: seen.append(cudnn.allow_tf32) or stored_numbers()[name])
    assert set(dict(reference.differences(CPU)).values()) == {0.0}
    assert set(seen) == {False}
    assert cudnn.allow_tf32
    cudnn.allow_tf32 = False
    devices.prepare(torch.device("cuda"))
    assert (cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic) == (True, False, True)


def test_the_stored_numbers_are_what_the_writer_writes(tmp_path: Path) -> None:
    reference.write(tmp_path / "x.json", ["ppo"])
    again = json.loads((tmp_path / "x.json").read_text())
    assert difference(again["ppo"], stored_numbers()["ppo"]) < TOLERANCE / 10


@pytest.mark.parametrize(
    ("found", "slow", "said"),
    [
        ((), False, "not native on this cpu: machine.precision=auto means fp32"),
        (("AVX512-BF16", "AMX"), False, "native (AVX512-BF16, AMX): machine.precision=auto means bf16"),
        (("AVX512-BF16",), True, "without AMX: machine.precision=auto means fp32"),
    ],
)
def test_the_doctor_says_what_this_machine_does_with_bfloat16(
    found: tuple[str, ...], slow: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "native_bf16", lambda: found)
    monkeypatch.setattr(devices, "slow_bf16", lambda: slow)
    assert said in doctor._bfloat16()[2]
