"""What a run needs of memory and disk, and what happens when it is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

import dcpg
from dcpg.config.resolve import resolve
from dcpg.core.encoders import Impala, Net
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput
from dcpg.machine import cgroup
from dcpg.machine import needs as machine_needs
from dcpg.machine.automatic import settled
from dcpg.methods import METHODS
from dcpg.seeding import generator
from tests.small import SMALL

FRAMES = Spaces((64, 64, 3), np.dtype(np.uint8), 15)
TINY = {"evaluation.episodes": 2}


def needs(name: str, **settings: object) -> machine_needs.Needs:
    config = resolve(name, "maze", settings={k.replace("__", "."): v for k, v in settings.items()})
    return machine_needs.needs_of(settled(config, FRAMES), FRAMES)


def test_the_buffer_is_what_the_paper_keeps() -> None:
    """32 rollouts of 64 x 256 frames, 9 times smaller than they are, and some numbers for each."""
    frames = 32 * 64 * 256 * 64 * 64 * 3
    assert needs("dcpg").buffer == pytest.approx(frames / 9, rel=0.15)
    assert needs("ppo").buffer == needs("daac").buffer == 0
    assert needs("dcpg", algorithm__N_pi=64).buffer == 2 * needs("dcpg").buffer
    assert needs("dcpg").memory > needs("dcpg").buffer + 64 * 257 * 64 * 64 * 3


def test_a_minibatch_whose_graph_is_kept_whole_costs_memory() -> None:
    """4 segments of 256 frames through the discriminator, against chunks of 120; phi's graph comes on top in DPPG."""
    graph = 635_904 * machine_needs.KEPT  # bytes of a frame's graph: measured below
    assert needs("ddcpg").memory - needs("dcpg").memory == pytest.approx((1028 - 120) * graph, rel=0.06)
    assert needs("dppg").memory - needs("ddcpg").memory == pytest.approx(1028 * graph, rel=0.06)
    assert needs("ppo", machine__chunk=2048).memory - needs("ppo").memory > (2048 - 120) * graph
    assert needs("ucb-drac").memory > needs("ppo").memory  # two views of each frame
    assert needs("idaac").memory > needs("daac").memory


def test_a_frames_graph_holds_what_is_counted() -> None:
    encoder = Impala((64, 64, 3), Net())
    encoder.initialise(generator(0, "encoder"))
    weights = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        features = encoder(torch.zeros(8, 64, 64, 3, dtype=torch.uint8))
    assert sum(held.values()) / 8 == pytest.approx(635_904, rel=0.01)
    assert features.requires_grad
    counted, _ = Impala.graph_bytes((64, 64, 3), Net(), 4)
    assert counted == pytest.approx(635_904, rel=0.03)


@pytest.mark.parametrize("name", METHODS)
def test_the_papers_sizes_stay_small(name: str) -> None:
    bound = {"dppg": 4e9, "ppo": 2.5e9, "dcpg": 2.5e9}.get(name, 3e9)
    assert needs(name).memory - (machine_needs.CUDA_BUILD if torch.version.cuda else 0) < bound
    assert needs(name).disk < 2.2e9


def test_other_observations_are_not_compressed_on_paper() -> None:
    c = resolve("dcpg", "maze")
    floats, pixels = (
        machine_needs.needs_of(c, Spaces((64,), np.dtype(kind), 4)).buffer for kind in (np.float32, np.uint8)
    )
    assert floats > 3 * pixels


def test_milestones_take_disk() -> None:
    weights = 4 * 626_256
    with_them = needs("dcpg", keep_every=1_000_000).disk - needs("dcpg").disk
    assert with_them == pytest.approx(25 * weights)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["dcpg", "ddcpg"])
def test_the_bound_is_above_what_is_measured(name: str) -> None:
    """A real process with B full, at a size where frames and graphs count."""
    sizes = [
        "env.frame_size=64",
        "env.num_envs=32",
        "rollout_length=64",
        "network.channels=16,32,32",
        "machine.chunk=32",
    ]
    settings = [word for pair in sizes for word in ("--set", pair)]
    command = [sys.executable, "-m", "dcpg", "bench", "--method", name, "--preset", "tiny", "--memory", "--json"]
    done = subprocess.run([*command, *settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["methods"][name]
    assert found["bound_gb"] / 2 < found["peak_memory_gb"] < found["bound_gb"]


@pytest.mark.parametrize(("what", "said"), [("free_memory", "of memory"), ("free_disk", "of disk at")])
def test_a_run_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: str) -> None:
    monkeypatch.setattr(machine_needs, what, lambda *_: -1e12)
    with pytest.raises(BadInput, match="no room for this run") as refused:
        dcpg.train("ppo", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_run_can_be_started_all_the_same_and_is_warned_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_needs, "free_memory", lambda: -1e12)
    settings = TINY | SMALL | {"check_room": False, "evaluation.max_steps": 20}
    run = dcpg.train("ppo", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=settings)
    assert run.summary["status"] == "finished"
    capsys.readouterr()
    dcpg.resume(run, steps=256)
    assert "may not have the memory or disk" in capsys.readouterr().out


def poles(n: int, seed: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", n)


def test_ones_own_environment_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_needs, "free_memory", lambda: -1e12)
    with pytest.raises(BadInput, match="no room"):
        dcpg.train("ppo", env=poles, preset="tiny", steps=128, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tightest group from the process's own up to the root; memory that can be taken back is not used up."""
    job = tmp_path / "slurm" / "job"
    job.mkdir(parents=True)
    for folder, limit in ((tmp_path, "max"), (tmp_path / "slurm", "8000"), (job, "9000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("3000\n")
        (folder / "memory.stat").write_text("anon 2000\ninactive_file 1000\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/slurm/job\n")
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "MEMBERSHIP", membership)
    assert machine_needs.free_memory() == 6000
    assert cgroup.kills() == 0
    (job / "memory.events").write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert cgroup.kills() == 3
    membership.write_text("12:memory:/old\n")  # version 1: not read
    assert machine_needs.free_memory() > 1e6
    assert cgroup.kills() == 0
    membership.unlink()
    assert machine_needs.free_memory() > 1e6


def test_free_disk_counts_what_the_run_holds_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=500)

    monkeypatch.setattr(machine_needs.shutil, "disk_usage", usage)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "file").write_bytes(b"x" * 1000)
    assert machine_needs.free_disk(tmp_path / "run") == 1500
    assert machine_needs.free_disk(tmp_path / "not" / "yet") == 500
    assert asked == [tmp_path / "run", tmp_path]
    assert machine_needs.free_disk(Path("x" * 300)) == 500  # no such name can be; who makes the directory says so
