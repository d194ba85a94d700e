"""What the Ray engine declares and refuses, without a cluster. With one: tests/faults/test_sweep_ray.py."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from dcpg.config.build import known_spaces
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.errors import BadInput, DcpgError
from dcpg.machine.automatic import settled
from dcpg.machine.needs import needs_of
from dcpg.sweep.attempt import Attempt
from dcpg.sweep.plan import Job
from dcpg.sweep.ray import cluster
from dcpg.sweep.ray.engine import RayEngine, _describe, _fits, _largest, _runs_on, demand


def config(device: str = "cpu", **machine: int) -> Config:
    whole = settled(resolve("ddcpg", "bigfish", settings={"machine.threads": 4, "machine.device": "cpu"}))
    return dataclasses.replace(whole, machine=dataclasses.replace(whole.machine, device=device, **machine))


def job(device: str = "cpu") -> Job:
    return Job("run", config(device), "ddcpg")


def test_a_run_declares_its_cores_and_the_memory_that_it_may_need() -> None:
    spaces = known_spaces(config())
    assert spaces is not None
    assert demand(job()) == {"num_cpus": 4, "memory": int(needs_of(config(), spaces).memory), "num_gpus": 0}


def test_a_run_on_a_gpu_declares_it_even_if_the_driver_has_none() -> None:
    found = demand(job("cuda"))
    assert (found["num_cpus"], found["num_gpus"]) == (4, 1)
    assert 1e9 < found["memory"] <= demand(job())["memory"]


def test_ray_and_not_the_user_chooses_the_gpu() -> None:
    with pytest.raises(BadInput, match="Ray gives each run its GPU; use cuda"):
        demand(job("cuda:1"))


def test_how_many_runs_a_node_takes() -> None:
    wanted = {"num_cpus": 2, "memory": 3_000_000_000, "num_gpus": 0}
    node = {"CPU": 8.0, "memory": 10e9, "object_store_memory": 1e8, "node:10.0.0.1": 1.0}
    assert _runs_on(node, wanted) == 3  # memory for three, cores for four
    assert not _fits(node, {**wanted, "num_gpus": 1})
    assert not _fits({"memory": 10e9}, wanted)  # a head that takes no runs
    assert _runs_on({**node, "GPU": 2.0}, {**wanted, "num_gpus": 1}) == 2
    largest = _largest([wanted, {"num_cpus": 1, "memory": 4_000_000_000, "num_gpus": 1}])
    assert largest == {"num_cpus": 2, "memory": 4_000_000_000, "num_gpus": 1}
    assert _describe(largest) == "2 cores, 4.0 GB, 1 GPU"


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'dcpg\[ray\]'"):
        RayEngine(tmp_path, [], None)
    assert list(tmp_path.iterdir()) == []


def test_a_ray_that_could_not_have_found_its_token_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = types.ModuleType("ray")
    loaded.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", loaded)
    with pytest.raises(DcpgError, match="Ray was loaded before"):
        RayEngine(tmp_path, [], None)


class IdleRay:
    """A cluster that accepts tasks and finishes none."""

    def remote(self, task: Any) -> IdleRay:
        return self

    def options(self, **given: Any) -> Any:
        return types.SimpleNamespace(remote=lambda *arguments: object())

    def wait(self, pending: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [], pending

    def shutdown(self) -> None: ...


def test_a_stop_while_the_storage_fails_is_asked_for_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "connect", lambda address: IdleRay())
    monkeypatch.setattr(RayEngine, "_check_room", lambda self: None)
    said: list[str] = []
    engine = RayEngine(tmp_path, [job()], "127.0.0.1:1", said.append)
    engine.submit(Attempt(str(tmp_path), "run", {}))

    def away(*given: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as changed:
        changed.setattr(os, "replace", away)
        engine.stop()
        assert engine.wait(0) == engine.wait(0) == []  # a run that cannot be seen may be training
    assert len(said) == 1
    assert said[0].startswith("The runs could not be told to stop yet")
    shutil.rmtree(tmp_path / "nodes")  # somebody tidies up: the runs must hear of the stop all the same
    assert engine.wait(0) == []  # the sweep's directory is gone, or moved: nobody would look in a new one
    assert not (tmp_path / "nodes").exists()
    (tmp_path / "runs").mkdir()
    assert [(outcome.name, outcome.code) for outcome in engine.wait(0)] == [("run", 75)]
    assert [file.name.split("-")[0] for file in (tmp_path / "nodes").iterdir()] == ["stop"]
    engine.close()
