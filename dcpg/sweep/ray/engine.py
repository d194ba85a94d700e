"""The engine for a Ray cluster: each attempt is a Ray task that declares its cores, its memory and its GPU.

Ray reads its environment when it is imported. One that this program starts itself must find its token there, so nothing
imports Ray before the engine does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import ipaddress
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dcpg.config.build import known_spaces
from dcpg.config.resolve import available_cores
from dcpg.config.schema import Config
from dcpg.errors import BadInput, DcpgError, OutOfMemory, StorageFailed
from dcpg.machine.needs import free_memory
from dcpg.machine.needs import needs_of as _needs
from dcpg.runs.status import runs_now
from dcpg.sweep.attempt import Order, Outcome, never_begun
from dcpg.sweep.directory import Layout
from dcpg.sweep.plan import Job, kinds
from dcpg.sweep.ray.handshake import Desk
from dcpg.sweep.ray.task import carry_out
from dcpg.training.stop import NUMBERS

STORE = 100_000_000  # bytes for Ray's objects, of which there are only the outcomes


NODE = "ray.io/node-id"  # Ray's label


class NoNodeLeft(DcpgError):
    """No node of the cluster sees the sweep's directory."""


def _tell(text: str) -> None:
    print(f"dcpg: {text}", file=sys.stderr)


class RayEngine:
    """Gives all orders to Ray at once; Ray begins each when a node has room for it."""

    task = staticmethod(carry_out)

    def __init__(
        self, root: Path, jobs: Sequence[Job], address: str | None, tell: Callable[[str], None] = _tell
    ) -> None:
        self.layout, self.tell = Layout(root.absolute()), tell
        each = {kind: demand(job.config) for kind, job in kinds(jobs).items()}
        self.demands = {job.name: each[job.label, job.config.steps] for job in jobs}
        self._own = address is None
        if importlib.util.find_spec("ray") is None:
            raise BadInput("--engine ray needs Ray; run: pip install 'dcpg[ray]'")
        self._orders: dict[Any, Order] = {}  # Ray's reference to an outcome -> what it is of
        self._blind: dict[str, str] = {}  # node -> host
        self._stopping = False
        self._never_begun: list[Outcome] = []
        with contextlib.ExitStack() as held:
            try:
                self._desk = Desk(self.layout.nodes)
            except OSError as error:
                raise StorageFailed(f"{self.layout.nodes} cannot be written to ({error}).") from None
            held.callback(self._desk.close)
            if address is None:
                self._ray = _start(held.enter_context(_private_folder()))
            else:
                self._ray = _connect(address)
            held.callback(self._ray.shutdown)
            self._remote = self._ray.remote(self.task)
            self._check_room()
            self._held = held.pop_all()

    def submit(self, order: Order) -> None:
        """Take an order; it begins when there is room."""
        options: dict[str, Any] = {**self.demands[order.name], "max_retries": 0}  # who tries again is the driver
        if self._blind:
            options["label_selector"] = {NODE: f"!in({','.join(self._blind)})"}
        task = self._remote.options(name=order.name, **options)
        self._orders[task.remote(dataclasses.asdict(order), self._desk.driver)] = order

    def wait(self, seconds: float) -> list[Outcome]:
        """The attempts that ended since the last call; waits at most so long for the first."""
        self._desk.confirm()
        if self._never_begun or not self._orders:
            time.sleep(0 if self._never_begun else seconds)
            found, self._never_begun = self._never_begun, []
            return found
        pending = list(self._orders)
        self._ray.wait(pending, num_returns=1, timeout=seconds)
        ready, _ = self._ray.wait(pending, num_returns=len(pending), timeout=0)
        return [outcome for ref in ready if (outcome := self._outcome(ref)) is not None]

    def _outcome(self, ref: Any) -> Outcome | None:
        """What became of an attempt; None if it was given to another node."""
        from ray import exceptions

        order = self._orders.pop(ref)
        try:
            found: dict[str, Any] = self._ray.get(ref)
        except exceptions.OutOfMemoryError as error:
            return Outcome(order.name, OutOfMemory.exit_code, "", _first_lines(error))
        except exceptions.RayTaskError as error:  # before or after our own code: dcpg is missing there, for example
            return Outcome(order.name, 1, "", str(error)[-4_000:])
        except exceptions.RayError as error:  # the worker or its node is gone, or what it answered
            return Outcome(order.name, None, "", _first_lines(error))
        if "blind" not in found:
            return Outcome(**found)
        if self._stopping:
            return never_begun(order)
        self._exclude(found["blind"], found["host"], self.demands[order.name])
        self.submit(order)
        return None

    def _exclude(self, node: str, host: str, wanted: Mapping[str, float]) -> None:
        if node in self._blind:
            return
        self._blind[node] = host
        self.tell(
            f"Node {host} ({node[:12]}) does not see {self.layout.root}, or sees another directory there: it gets no "
            "runs. Put the sweep on storage that all nodes share."
        )
        if not any(_fits(other["Resources"], wanted) for other in self._nodes()):
            raise NoNodeLeft(
                f"No node is left that sees {self.layout.root} and has {_words(wanted)} (asked: "
                f"{', '.join(sorted(set(self._blind.values())))}); with --out put the sweep on storage that all share."
            )

    def _nodes(self) -> list[dict[str, Any]]:
        """Those that live and may be given runs."""
        return [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self._blind]

    def _check_room(self) -> None:
        """Ray would wait for ever, silently, for a node that is large enough."""
        nodes = self._nodes()
        for wanted in {tuple(sorted(d.items())): d for d in self.demands.values()}.values():
            if not any(_fits(node["Resources"], wanted) for node in nodes):
                text = f"a run needs {_words(wanted)}, and no node of the cluster has all of that"
                if self._own:
                    raise BadInput(f"There is no room on this machine: {text}. Make the runs smaller.")
                self.tell(f"{text[0].upper()}{text[1:]}; such runs wait until one joins.")

    def describe(self) -> str:
        """For people: where, and how many side by side."""
        nodes, largest = self._nodes(), _largest(self.demands.values())
        places = sum(_places(node["Resources"], largest) for node in nodes)
        where = "Ray on this machine" if self._own else f"a Ray cluster, {len(nodes)} nodes"
        return f"{where}, {places} side by side ({_words(largest)} a run)"

    def stop(self) -> None:
        """Ask every attempt to save and end, and begin no other; their outcomes still come (exit code 75)."""
        self._stopping = True
        self._desk.stop()
        # What has not visibly begun is not waited for: Ray may never find room for it. Nor is it cancelled: if a task
        # ends at that moment, Ray 2.60 ends the driver. Should one begin now, it sees that it was asked to stop.
        for ref, order in list(self._orders.items()):
            if not runs_now(self.layout.run(order.name) / "lock"):
                del self._orders[ref]
                self._never_begun.append(never_begun(order))

    def close(self) -> None:
        """End everything at once and free what is held."""
        self._held.close()


def demand(config: Config) -> dict[str, float]:
    """What a run's task declares, in Ray's words."""
    device = config.machine.device
    if device not in ("cpu", "cuda"):
        raise BadInput(f"machine.device is {device!r}, but Ray gives each run its GPU; use cuda.")
    spaces = known_spaces(config)
    assert spaces is not None  # a sweep trains on Procgen alone
    try:
        memory = _needs(config, spaces).memory
    except BadInput:  # the nodes may have a GPU where the driver has none; without one a run needs more
        machine = dataclasses.replace(config.machine, device="cpu")
        memory = _needs(dataclasses.replace(config, machine=machine), spaces).memory
    return {"num_cpus": config.machine.threads, "memory": int(memory), "num_gpus": int(device == "cuda")}


NAMES = {"num_cpus": "CPU", "memory": "memory", "num_gpus": "GPU"}  # options of a task -> resources of a node


def _places(has: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    return min(int(has.get(NAMES[name], 0.0) // value) for name, value in wanted.items() if value)


def _fits(has: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return _places(has, wanted) > 0


def _largest(demands: Any) -> dict[str, float]:
    listed = list(demands)
    return {name: max(d[name] for d in listed) for name in NAMES}


def _words(wanted: Mapping[str, float]) -> str:
    gpu = ", 1 GPU" if wanted["num_gpus"] else ""
    cores = wanted["num_cpus"]
    return f"{cores:.0f} core{'s' if cores > 1 else ''}, {wanted['memory'] / 1e9:.1f} GB{gpu}"


def _first_lines(error: Exception) -> str:
    return str(error)[:1_000]


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Around Ray's own, which Ray opens to everybody; its sockets there ask for no token. Paths must be short."""
    short = os.environ.get("RAY_TMPDIR", "/tmp")  # noqa: S108 -- only its owner may enter the folder
    return tempfile.TemporaryDirectory(prefix="dcpg-ray-", dir=short, ignore_cleanup_errors=True)


def _start(folder: str) -> Any:
    """A Ray of our own: this machine alone, on loopback, and nobody else's without its token."""
    if "ray" in sys.modules:
        raise DcpgError("Ray was loaded before its environment was set; this is a mistake in dcpg.")
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # on any system: no cluster over the network, therefore loopback
    )
    if not os.environ.get("RAY_AUTH_TOKEN") and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    own: dict[str, Any] = {"num_cpus": available_cores(), "object_store_memory": STORE, "_memory": int(free_memory())}
    ray = _init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, _temp_dir=f"{folder}/r", **own)
    places = {node["NodeManagerAddress"] for node in ray.nodes()}
    if not all(ipaddress.ip_address(place).is_loopback for place in places):
        ray.shutdown()
        raise DcpgError(f"Ray listens on {', '.join(sorted(places))} instead of loopback alone, and was ended.")
    return ray


def _connect(address: str) -> Any:
    """The user's cluster, as it is."""
    from ray.exceptions import RayError

    try:
        return _init(address=address)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        first = str(error).strip().split("\n", 1)[0]
        raise BadInput(f"No Ray cluster can be reached at {address} ({type(error).__name__}: {first}).") from None


def _init(**options: Any) -> Any:
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # each is told as the outcome that it is
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do by default, without a warning
    import ray

    with _signals_kept():
        ray.init(log_to_driver=False, configure_logging=False, **options)
    return ray


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts its own handler for SIGTERM in the place of ours."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # not the main thread: then Ray did not do it either
                signal.signal(number, handler)
