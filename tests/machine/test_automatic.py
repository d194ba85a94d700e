"""What `auto` becomes: once, at the start, written down and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import dcpg
from dcpg.config.automatic import CHUNKS, FLAT, cpu_chunk
from dcpg.config.resolve import resolve
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput
from dcpg.machine import automatic, devices
from dcpg.machine.automatic import cuda_chunk, settled
from dcpg.machine.needs import frame_bytes, needs_of
from dcpg.storage.rundir import RunDirectory

PAPER = Spaces((64, 64, 3), np.dtype(np.uint8), 15)
TINY = {"evaluation.episodes": 1, "evaluation.max_steps": 20}


def native(monkeypatch: pytest.MonkeyPatch, yes: bool) -> None:
    monkeypatch.setattr(automatic, "bf16_pays", lambda device: yes)


@pytest.mark.parametrize(
    ("preset", "settings", "here", "elsewhere"),
    [
        ("laptop", {}, "bf16", "fp32"),
        ("paper", {}, "fp32", "fp32"),
        ("tiny", {}, "fp32", "fp32"),
        ("laptop", {"machine.precision": "fp32"}, "fp32", "fp32"),
        ("paper", {"machine.precision": "bf16"}, "bf16", "bf16"),
    ],
)
def test_precision(
    preset: str, settings: dict[str, Any], here: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 where it is faster and the preset is laptop, unless a precision is given."""
    config = resolve("dcpg", "maze", preset=preset, settings=settings)
    for yes, expected in ((True, here), (False, elsewhere)):
        native(monkeypatch, yes)
        assert settled(config).machine.precision == expected


def test_observations_that_are_not_images_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    native(monkeypatch, True)
    config = settled(resolve("dcpg", "maze", preset="laptop"), Spaces((7,), np.dtype(np.float32), 4))
    assert (config.machine.precision, config.machine.chunk) == ("fp32", FLAT)


@pytest.mark.parametrize(
    ("vendor", "flags", "names", "pays"),
    [
        ("AuthenticAMD", "fpu avx2", (), False),
        ("AuthenticAMD", "avx512f avx512_bf16", ("AVX512-BF16",), True),  # Zen 4
        ("AuthenticAMD", "avx512_bf16 avx512_fp16", ("AVX512-BF16",), True),
        ("GenuineIntel", "avx512f avx512_bf16", ("AVX512-BF16",), True),  # Cooper Lake
        ("GenuineIntel", "amx_bf16 avx512_bf16 avx512_fp16", ("AVX512-BF16", "AMX"), True),  # Sapphire Rapids
        ("GenuineIntel", "avx512_bf16 avx512_fp16", ("AVX512-BF16",), False),  # the same without AMX
    ],
)
def test_the_instructions_of_the_processor(
    vendor: str, flags: str, names: tuple[str, ...], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` does not mean bfloat16 where the processor has it and is slower with it."""
    fields = {"vendor_id": vendor, "flags": flags}
    monkeypatch.setattr(devices, "_cpuinfo", fields.__getitem__)
    for found in (devices.native_bf16, devices.slow_bf16):
        monkeypatch.setattr(devices, found.__name__, found.__wrapped__)  # not what was found before
    assert devices.native_bf16() == names
    assert devices.has_bf16(torch.device("cpu")) == bool(names)
    assert devices.bf16_pays(torch.device("cpu")) == pays


@pytest.mark.parametrize(("capability", "yes"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_the_compute_capability_of_a_gpu(
    capability: tuple[int, int], yes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert devices.has_bf16(torch.device("cuda")) == yes


def test_the_device_is_cuda_if_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve("dcpg", "maze")
    assert config.machine.device == "auto"
    assert settled(config).machine.device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80e9, 80e9))
    found = settled(config).machine
    assert (found.device, found.chunk) == ("cuda", 2048)  # whole minibatches


def test_apples_devices_are_refused_with_a_reason() -> None:
    with pytest.raises(BadInput, match=r"machine\.device=mps is not supported: .* use cpu"):
        settled(resolve("dcpg", "maze", settings={"machine.device": "mps"}))


def test_chunks_on_the_cpu_come_from_the_table() -> None:
    for pixels, row in CHUNKS.items():
        side = int(pixels**0.5)
        assert [cpu_chunk((side, side, 3), threads) for threads in (1, 2, 64)] == [row[1], row[2], row[2]]
    assert cpu_chunk((48, 48, 3), 1) == CHUNKS[64 * 64][1]  # the next larger frame
    assert cpu_chunk((128, 128, 3), 1) == CHUNKS[64 * 64][1] // 4
    assert cpu_chunk((4096, 4096, 3), 1) == 1
    assert cpu_chunk((9,), 1) == FLAT


def test_chunks_on_a_gpu_are_bounded_by_its_memory() -> None:
    config = resolve("ddcpg", "maze", settings={"machine.device": "cpu"})
    assert cuda_chunk(config, PAPER, 80e9) == 2048
    some = cuda_chunk(config, PAPER, 1e9)
    assert 100 < some < 1000
    assert some * frame_bytes(config, PAPER) <= 0.5e9
    assert cuda_chunk(config, PAPER, 1.0) == 1
    huge = {"env.num_envs": 2048, "algorithm.minibatches": 2, "env.frame_size": 16}
    spaces = Spaces((16, 16, 3), np.dtype(np.uint8), 15)
    assert cuda_chunk(resolve("ppo", "maze", settings=huge), spaces, 1e15) == 65_536  # what the setting allows


def test_a_driver_without_a_gpu_leaves_the_rest_to_the_node() -> None:
    config = resolve("dcpg", "maze", preset="laptop", settings={"machine.device": "cuda"})
    found = settled(config).machine
    assert (found.device, found.precision, found.chunk) == ("cuda", "auto", 0)


def test_ranks_agree_on_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the memory that their GPUs have, not by what the others left free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(automatic, "processes", lambda: 2)
    found = []
    for free in (3e8, 1e9):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80e9))
        found.append(settled(resolve("dcpg", "maze")).machine.chunk)
    assert found == [2048, 2048]


def test_a_gpu_holds_the_rollout_and_the_host_what_is_opened_ahead() -> None:
    config = settled(resolve("dcpg", "maze", settings={"machine.device": "cpu"}))
    on_cpu = needs_of(config, PAPER)
    on_gpu = needs_of(settled(resolve("dcpg", "maze", settings={"machine.device": "cuda"})), PAPER)
    assert on_cpu.device == 0
    assert on_gpu.device > 64 * 256 * 64 * 64 * 3
    assert on_gpu.memory > on_gpu.buffer + 64 * 256 * 64 * 64 * 3 + 2 * 5 * 1024 * 64 * 64 * 3


def test_what_was_resolved_is_in_config_json_and_kept_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dcpg.train("dcpg", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    machine = json.loads((tmp_path / "run" / "config.json").read_text())["machine"]
    assert (machine["device"], machine["precision"], machine["chunk"]) == ("cpu", "fp32", CHUNKS[32 * 32][1])
    native(monkeypatch, True)
    monkeypatch.setattr(automatic, "cpu_chunk", lambda shape, threads: 7)
    dcpg.resume(run, steps=256)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["machine"] == machine
    assert RunDirectory(tmp_path / "run").read_config()["steps"] == 256


def test_your_own_environment_is_resolved_when_its_spaces_are_known(tmp_path: Path) -> None:
    def poles(n: int, seed: int) -> gymnasium.vector.VectorEnv:
        return gymnasium.make_vec("CartPole-v1", n)

    dcpg.train("ppo", env=poles, preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    machine = json.loads((tmp_path / "run" / "config.json").read_text())["machine"]
    assert (machine["device"], machine["precision"], machine["chunk"]) == ("cpu", "fp32", FLAT)


def test_emulated_bfloat16_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dcpg.training.start.has_bf16", lambda device: False)
    settings = TINY | {"machine.precision": "bf16"}
    dcpg.train("ppo", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=settings)
    assert "has no instructions for bfloat16 and emulates it" in capsys.readouterr().out
