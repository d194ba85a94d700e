"""The engine for a Ray cluster: each attempt is a Ray task that declares its cores, its memory and its GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput, DcpgError, OutOfMemory, StorageFailed
from dcpg.extras import need
from dcpg.machine.automatic import settled
from dcpg.runs.status import is_running
from dcpg.sweep.attempt import Attempt, Outcome, not_started
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.local import run_needs
from dcpg.sweep.plan import Job, one_per_label
from dcpg.sweep.ray import cluster
from dcpg.sweep.ray.task import DriverFile, carry_out
from dcpg.text import counted, say

NODE_LABEL = "ray.io/node-id"
RESOURCES = {"num_cpus": "CPU", "memory": "memory", "num_gpus": "GPU"}  # option of a task -> resource of a node


class NoNodeLeft(DcpgError):
    """No node of the cluster can use the sweep's directory."""


def _print_message(text: str) -> None:
    say(f"dcpg: {text}", to=sys.stderr)


class RayEngine:
    """Hands all attempts to Ray at once; Ray starts each when a node has room for it."""

    task = staticmethod(carry_out)

    def __init__(
        self, root: Path, jobs: Sequence[Job], address: str | None, message: Callable[[str], None] = _print_message
    ) -> None:
        self.directory, self.message = SweepDirectory(root.absolute()), message
        demands = {key: demand(job) for key, job in one_per_label(jobs).items()}
        self.demands = {job.name: demands[job.label, job.config.steps] for job in jobs}
        self._own_cluster = address is None
        need("ray", "--engine ray")
        self._attempts: dict[Any, Attempt] = {}  # by Ray's reference to the outcome
        self._excluded: dict[str, str] = {}  # node -> host
        self._stopping = self._asked = self._told_of_failure = False
        self._not_started: list[Outcome] = []
        self._failure: NoNodeLeft | None = None  # `wait` raises it
        with contextlib.ExitStack() as resources:
            try:
                self._driver_file = DriverFile(self.directory.nodes)
            except OSError as error:
                raise StorageFailed(f"{self.directory.nodes} cannot be written to ({error}).") from None
            resources.callback(self._driver_file.remove)
            if address is None:
                self._ray = cluster.start(resources.enter_context(cluster.private_folder()))
            else:
                self._ray = cluster.connect(address)
            resources.callback(self._ray.shutdown)
            self._remote = self._ray.remote(self.task)
            self._check_room()
            self._resources = resources.pop_all()

    def submit(self, attempt: Attempt) -> None:
        options: dict[str, Any] = {**self.demands[attempt.name], "max_retries": 0}  # the driver decides about retries
        if self._excluded:
            options["label_selector"] = {NODE_LABEL: f"!in({','.join(self._excluded)})"}
        task = self._remote.options(name=attempt.name, **options)
        self._attempts[task.remote(dataclasses.asdict(attempt), self._driver_file.nonce)] = attempt

    def wait(self, seconds: float) -> list[Outcome]:
        if self._failure is not None and not self._stopping:
            raise self._failure
        if self._stopping:
            self._ask_to_stop()
        if self._not_started or not self._attempts:
            time.sleep(0 if self._not_started else seconds)
            found, self._not_started = self._not_started, []
            return found
        pending = list(self._attempts)
        self._ray.wait(pending, num_returns=1, timeout=seconds)
        ready, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
        return [outcome for ref in ready if (outcome := self._outcome(ref)) is not None]

    def _outcome(self, ref: Any) -> Outcome | None:
        """The outcome of a task; None if its node was excluded, and the attempt submitted again."""
        from ray import exceptions

        attempt = self._attempts.pop(ref)
        try:
            found: dict[str, Any] = self._ray.get(ref)
        except exceptions.OutOfMemoryError as error:
            return Outcome(attempt.name, OutOfMemory.exit_code, "", _first_lines(error))
        except exceptions.RayTaskError as error:  # outside of our own code, for example because dcpg is missing there
            return Outcome(attempt.name, 1, "", str(error)[-4_000:])
        except exceptions.RayError as error:  # the worker, its node or its answer is lost
            return Outcome(attempt.name, None, "", _first_lines(error))
        if "unusable_node" not in found:
            return Outcome(**found)
        if self._stopping:
            return not_started(attempt)
        self._exclude(found["unusable_node"], found["host"], self.demands[attempt.name])
        if self._failure is not None:
            return not_started(attempt)
        self.submit(attempt)
        return None

    def _exclude(self, node: str, host: str, wanted: Mapping[str, float]) -> None:
        if node in self._excluded:
            return
        self._excluded[node] = host
        self.message(
            f"Node {host} ({node[:12]}) does not see {self.directory.root}, sees another directory there, or may not "
            "write to it: it gets no runs. Put the sweep on storage that all nodes share."
        )
        if not any(_fits(other["Resources"], wanted) for other in self._nodes()):
            self._failure = NoNodeLeft(
                f"No node is left that sees {self.directory.root} and has {_describe(wanted)} (asked: "
                f"{', '.join(sorted(set(self._excluded.values())))}); with --out put the sweep on storage that all "
                "nodes share."
            )

    def _nodes(self) -> list[dict[str, Any]]:
        """The nodes that are alive and not excluded."""
        return [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self._excluded]

    def _check_room(self) -> None:
        """Say so if no node is large enough for a run: Ray would wait for one silently and for ever."""
        nodes = self._nodes()
        for wanted in {tuple(sorted(d.items())): d for d in self.demands.values()}.values():
            if not any(_fits(node["Resources"], wanted) for node in nodes):
                text = f"a run needs {_describe(wanted)}, and no node of the cluster has all of that"
                if self._own_cluster:
                    raise BadInput(f"There is no room on this machine: {text}. Make the runs smaller.")
                self.message(f"{text[0].upper()}{text[1:]}; such runs wait until one joins.")

    def describe(self) -> str:
        nodes, largest = self._nodes(), _largest(self.demands.values())
        runs = sum(_runs_on(node["Resources"], largest) for node in nodes)
        where = "Ray on this machine" if self._own_cluster else f"a Ray cluster, {counted(len(nodes), 'node')}"
        return f"{where}, {runs} side by side ({_describe(largest)} per run)"

    def stop(self) -> None:
        self._stopping = True
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """Tell the attempts once; while the storage fails they cannot be told, and every `wait` tries again."""
        if self._asked:
            return
        try:
            self._driver_file.ask_to_stop()
        except OSError as error:
            if not self._told_of_failure:
                self._told_of_failure = True
                self.message(f"The runs could not be told to stop yet ({error}); this is tried until it succeeds.")
            return
        self._asked = True
        # Tasks that have not visibly started are not waited for, since Ray may never find room for them. Nor are they
        # cancelled: Ray 2.60 kills the driver if a task ends at that moment. One that starts now sees the request.
        for ref, attempt in list(self._attempts.items()):
            if not is_running(self.directory.run(attempt.name)):
                del self._attempts[ref]
                self._not_started.append(not_started(attempt))

    def close(self) -> None:
        self._resources.close()


def demand(job: Job) -> dict[str, float]:
    """What the task of a run declares to Ray."""
    config = settled(job.config, job.spaces)
    device = config.machine.device
    if device not in ("cpu", "cuda"):
        raise BadInput(f"machine.device is {device!r}, but Ray gives each run its GPU; use cuda.")
    memory = int(run_needs(job).memory)
    return {"num_cpus": config.machine.threads, "memory": memory, "num_gpus": int(device == "cuda")}


def _runs_on(resources: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    """How many runs fit on a node."""
    return min(int(resources.get(RESOURCES[name], 0.0) // value) for name, value in wanted.items() if value)


def _fits(resources: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return _runs_on(resources, wanted) > 0


def _largest(demands: Iterable[Mapping[str, float]]) -> dict[str, float]:
    listed = list(demands)
    return {name: max(d[name] for d in listed) for name in RESOURCES}


def _describe(wanted: Mapping[str, float]) -> str:
    gpu = ", 1 GPU" if wanted["num_gpus"] else ""
    return f"{counted(int(wanted['num_cpus']), 'core')}, {wanted['memory'] / 1e9:.1f} GB{gpu}"


def _first_lines(error: Exception) -> str:
    return str(error)[:1_000]
