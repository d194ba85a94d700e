"""Faults 23 and 24 on a real Ray cluster: workers, nodes and the driver are killed, every result is there once."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults import driver
from tests.faults.driver import ROOT, Driver, Process, record, until
from tests.faults.test_sweep_local import Sweep, gone, undisturbed  # noqa: F401 -- the second is a fixture

pytestmark = pytest.mark.faults

NODES = 3
# a cluster that nobody else can reach, with a token that its drivers know
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass
class Cluster:
    """The cluster of tests/faults/ray_cluster.py."""

    process: subprocess.Popen[str]
    environment: dict[str, str]

    def __post_init__(self) -> None:
        self.says: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError("the cluster did not start")

    def kill_node(self, raylet: int) -> None:
        """Kill a node as if its machine had lost power. The first node is the cluster itself and cannot be killed."""
        assert raylet in self.says["nodes"][1:]
        assert self.process.stdin is not None
        self.process.stdin.write(f"kill {raylet}\n")
        self.process.stdin.flush()
        assert self._read() == {"killed": raylet}


@contextlib.contextmanager
def cluster_of(nodes: int, **environment: str) -> Iterator[Cluster]:
    environment = {**ENVIRONMENT, "RAY_AUTH_TOKEN": secrets.token_hex(32), **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.ray_cluster", str(nodes)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    ours: list[psutil.Process] = []
    try:
        yield Cluster(process, environment)
        ours = psutil.Process(process.pid).children(recursive=True)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
        until(lambda: all(gone(one.pid) for one in ours), 60)


class RaySweep(Sweep):
    """The sweep of the local engine's tests, on a cluster."""

    cluster: Cluster

    def start(self, *words: str) -> Process:
        where = ("--engine", "ray", "--address", self.cluster.says["address"])
        self.starts += 1
        arguments = ["sweep", str(self.file), "--out", str(self.out), *where, *words]
        return self.runs.start(arguments, env=self.cluster.environment)

    def paused(self) -> list[str]:
        """The runs that wait in their pause."""
        found = [job.name for job in self.plan.jobs if Path(f"{self.pause(job.name)}.reached").exists()]
        return [name for name in found if not gone(self.attempts(name)[-1])]

    def pause(self, name: str) -> Path:
        return self.folder / f"go-{name}"


def test_a_sweep_on_a_cluster_in_which_everything_dies(
    runs: Driver,
    undisturbed: dict[str, Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sweep = RaySweep(runs, tmp_path_factory.mktemp("ray"))
    everyone = [job.name for job in sweep.plan.jobs]
    for name in everyone:  # the first attempt at each comes to a halt in the middle
        sweep.fault(name, f"at policy 20 wait:{sweep.pause(name)}", "")
    inside = {"PYTHONPATH": f"{ROOT / 'tests/faults/sweep_child'}:{ROOT}", "DCPG_SWEEP_FAULTS": str(sweep.faults)}
    with cluster_of(NODES, **inside) as sweep.cluster:
        nodes = sweep.cluster.says["nodes"]

        # a worker is killed, then a node with its raylet and all that is in it
        first = sweep.start()
        until(lambda: len(sweep.paused()) == NODES)
        workers = {name: psutil.Process(sweep.attempts(name)[-1]).ppid() for name in sweep.paused()}
        raylets = {name: psutil.Process(worker).ppid() for name, worker in workers.items()}
        assert sorted(raylets.values()) == sorted(nodes)
        by_worker, by_node = [name for name in raylets if raylets[name] != nodes[0]]
        children = {name: sweep.attempts(name)[-1] for name in raylets}
        os.kill(workers[by_worker], signal.SIGKILL)
        sweep.cluster.kill_node(raylets[by_node])
        until(lambda: gone(children[by_worker]) and gone(children[by_node]), 60)

        # two nodes are left; the driver is killed with a run in the middle on each of them
        until(lambda: len(sweep.paused()) == NODES - 1)
        children = {name: sweep.attempts(name)[-1] for name in sweep.paused()}
        first.kill()
        assert first.wait().code == -9
        until(lambda: all(gone(child) for child in children.values()), 60)
        for name in (by_worker, by_node):
            assert [row["code"] for row in sweep.events(name) if row["event"] == "ended"][:1] == [None]

        # the next one goes on, and a signal makes it save all runs and end
        second = sweep.start()
        until(lambda: len(sweep.paused()) > 0)
        os.kill(second.pid, signal.SIGUSR1)
        for name in everyone:
            sweep.pause(name).touch()
        ended = second.wait()
        assert ended.code == 75, str(ended)
        assert "Stopped by SIGUSR1" in ended.err
        assert os.listdir(sweep.out / "nodes") == []

        # to the end
        ended = sweep.start().wait()
        assert ended.code == 0, str(ended)
        assert sweep.status()["done"] == len(everyone)

        # what is done stays as it is, and the token is nowhere
        before = {name: driver.listing(sweep.out / "runs" / name) for name in everyone}
        assert sweep.start().wait().code == 0
        assert {name: driver.listing(sweep.out / "runs" / name) for name in everyone} == before
        assert holding(sweep.out, sweep.cluster.environment["RAY_AUTH_TOKEN"]) == []

    finished = Counter(row["run"] for name in everyone for row in sweep.events(name) if row["event"] == "finished")
    lost, doubled = [n for n in everyone if not finished[n]], [n for n in everyone if finished[n] > 1]
    other = {name: driver.differences(sweep.out / "runs" / name, undisturbed[name]) for name in everyone}
    good = [name for name in everyone if finished[name] == 1 and not other[name]]
    print(f"sweep on Ray: {len(everyone)} runs, 3 kills, 1 stop, {len(lost)} results lost, {len(doubled)} doubled")
    record("23, 24 sweep on Ray: results there once, with the bytes of no faults", len(everyone), len(good))
    assert (lost, doubled) == ([], [])
    assert good == everyone, other
    record("23, 24 sweep on Ray: worker, node and driver killed -9", 3, 3)
    record("24 sweep on Ray: driver stopped by SIGUSR1", 1, 1)


# a node counts as lost after about three seconds without an answer, not after half a minute
IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def test_a_node_that_stops_answering(
    runs: Driver,
    undisturbed: dict[str, Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A machine that is frozen, not dead: the other runs go on, and its own waits until it answers again or is off.

    Ray counts the node as lost after seconds, but not what runs there as long as its connections are open.
    """
    sweep = RaySweep(runs, tmp_path_factory.mktemp("silent"))
    everyone = [job.name for job in sweep.plan.jobs]
    for name in everyone[:2]:
        sweep.fault(name, f"at policy 20 wait:{sweep.pause(name)}", "")
    inside = {"PYTHONPATH": f"{ROOT / 'tests/faults/sweep_child'}:{ROOT}", "DCPG_SWEEP_FAULTS": str(sweep.faults)}
    with cluster_of(2, **inside, **IMPATIENT) as sweep.cluster:
        started = sweep.start()
        until(lambda: len(sweep.paused()) == 2)
        trainers = {name: psutil.Process(sweep.attempts(name)[-1]) for name in sweep.paused()}
        families = {name: [one, *one.parents()[:2]] for name, one in trainers.items()}  # trainer, worker, raylet
        (lost,) = [name for name, family in families.items() if family[-1].pid == sweep.cluster.says["nodes"][1]]
        others = [name for name in everyone if name != lost]
        for one in reversed(families[lost]):
            one.suspend()
        for name in everyone[:2]:
            sweep.pause(name).touch()
        try:
            until(lambda: all("finished" in [row["event"] for row in sweep.events(name)] for name in others))
            assert "finished" not in [row["event"] for row in sweep.events(lost)]
        finally:
            for one in families[lost]:
                one.kill()
        ended = started.wait()
    assert ended.code == 0, str(ended)
    assert "Traceback" not in ended.err
    finished = Counter(row["run"] for name in everyone for row in sweep.events(name) if row["event"] == "finished")
    assert finished == Counter(everyone)
    assert {n: driver.differences(sweep.out / "runs" / n, undisturbed[n]) for n in everyone} == {
        n: [] for n in everyone
    }
    record("23 sweep on Ray: a node that stops answering", 1, 1)


def holding(folder: Path, text: str) -> list[Path]:
    """The files that hold a text."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


# -- a cluster that the program starts itself

STARTS = """
import json, os, signal, sys
from pathlib import Path
import psutil
from dcpg.sweep.ray.engine import RayEngine
from dcpg.sweep.plan import expand

def ours(number, frame): pass
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, ours)
source = dict(methods="ppo", games="starpilot", seeds=1, steps=512, preset="tiny")
engine = RayEngine(Path(sys.argv[1]), expand("one", source, "one").jobs, None)
import ray
me = psutil.Process()
family = [me, *me.children(recursive=True)]
ears = [(p.name(), c.laddr.ip) for p in family for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
context = ray.get_runtime_context()
folder = Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]
print(json.dumps({
    "ears": ears, "address": context.gcs_address, "token": os.environ["RAY_AUTH_TOKEN"], "says": engine.describe(),
    "signals": [signal.getsignal(n) is ours for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
    "usage": os.environ["RAY_USAGE_STATS_ENABLED"], "folder": str(folder),
    "mode": os.stat(folder).st_mode & 0o777, "family": [p.pid for p in family[1:]],
}), flush=True)
sys.stdin.readline()
engine.close()
"""
# the first request of every client of a cluster
ASKS = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    print(len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=30)), "nodes")
except AuthenticationError:
    print("refused")
"""


def asks(address: str, **token: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **token}
    words = [sys.executable, "-c", ASKS, address]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60).stdout.strip()


def test_a_ray_of_our_own_is_on_loopback_and_asks_for_its_token(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", STARTS, str(tmp_path / "sweep")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        found = json.loads(process.stdout.readline())
        assert {kind for kind, _ in found["ears"]} >= {"gcs_server", "raylet"}
        assert {ip.removeprefix("::ffff:") for _, ip in found["ears"]} <= {"127.0.0.1", "::1"}, found["ears"]
        assert found["usage"] == "0"
        assert found["signals"] == [True] * 3  # Ray has a handler of its own for SIGTERM
        assert found["mode"] == 0o700
        assert found["says"].startswith("Ray on this machine, ")
        assert len(found["token"]) == 64
        answers = [
            asks(found["address"]),
            asks(found["address"], RAY_AUTH_MODE="disabled"),
            asks(found["address"], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32)),
            asks(found["address"], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=found["token"]),
        ]
        assert answers == ["refused", "refused", "refused", "1 nodes"]
        assert holding(Path(found["folder"]), found["token"]) == []
        assert holding(tmp_path, found["token"]) == []
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == 0
        assert not Path(found["folder"]).exists()
        until(lambda: all(gone(pid) for pid in found["family"]), 60)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    record("35 strangers at a Ray of our own", 3, 3)


# -- nodes that cannot use the directory, and tasks that go wrong

ODD = """
import json, os, sys, time
from pathlib import Path
from dcpg.sweep.attempt import Attempt
from dcpg.sweep.ray.engine import NoNodeLeft, RayEngine
from dcpg.sweep.plan import expand

root, address = Path(sys.argv[1]), sys.argv[2]
file = str(root / "unusable")

def odd(attempt, nonce):
    import ray
    node, name = ray.get_runtime_context().get_node_id(), attempt["name"]
    if node in Path(file).read_text():
        return {"unusable_node": node, "host": "far-away"}
    if name.endswith("-4"):
        raise ValueError("a mistake")
    if name.endswith("-5"):
        os._exit(3)
    time.sleep(0.5)
    return {"name": name, "code": 0, "node": node, "last_lines": ""}

class Odd(RayEngine):
    task = staticmethod(odd)

source = dict(methods="ppo", games="starpilot", seeds=6, steps=512, preset="tiny")
jobs = expand("six", source, "six").jobs
told = []
engine = Odd(root, jobs, address, told.append)
import ray
nodes = [node["NodeID"] for node in ray.nodes()]
Path(file).write_text(nodes[1])
for job in jobs:
    engine.submit(Attempt(str(root), job.name, job.config.to_json()))
outcomes = {}
while len(outcomes) < len(jobs):
    for outcome in engine.wait(0.25):
        assert outcome.name not in outcomes
        outcomes[outcome.name] = [outcome.code, outcome.node, outcome.last_lines]
Path(file).write_text(" ".join(nodes))
engine.submit(Attempt(str(root), jobs[0].name, jobs[0].config.to_json()))
try:
    while True:
        engine.wait(0.25)
except NoNodeLeft as error:
    end = str(error)
engine.close()
print(json.dumps({"nodes": nodes, "outcomes": outcomes, "told": told, "end": end, "left": os.listdir(root / "nodes")}))
"""


def test_nodes_that_do_not_see_the_directory_and_tasks_that_go_wrong(tmp_path: Path) -> None:
    with cluster_of(2) as cluster:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", ODD, str(tmp_path), cluster.says["address"]],
            cwd=ROOT,
            env={**os.environ, **cluster.environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    usable, unusable = found["nodes"]
    outcomes = [found["outcomes"][f"starpilot-ppo-{seed}"] for seed in range(6)]
    assert outcomes[:4] == [[0, usable, ""]] * 4
    assert outcomes[4][0] == 1
    assert "ValueError: a mistake" in outcomes[4][2]
    assert outcomes[5][0] is None
    assert "worker died" in outcomes[5][2]
    assert [text.split(" does not see ")[0] for text in found["told"]] == [
        f"Node far-away ({node[:12]})" for node in (unusable, usable)
    ]
    assert found["end"].startswith(f"No node is left that sees {tmp_path} and has 1 core, 0.9 GB (asked: far-away)")
    assert found["left"] == []
    record("23 sweep on Ray: nodes that do not see the directory", 2, 2)
