"""A Ray cluster: the user's own, or one that is started on this machine for the time of a sweep.

Ray reads its environment when it is imported, and must find its token there, so nothing imports Ray before this does.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dcpg.config.resolve import available_cores
from dcpg.errors import BadInput, DcpgError
from dcpg.machine.needs import free_memory
from dcpg.training.stop import NUMBERS

PREFIX, DRIVER = "dcpg-ray-", "driver"  # of the folder; the file in it that its driver locks
NEW_SECONDS = 60.0  # after which a folder that is not locked belongs to nobody
STORE = 100_000_000  # bytes for Ray's objects, of which there are only the outcomes


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """A folder around Ray's own, which Ray opens to everybody with sockets that need no token. Paths must be short.

    A file in it is locked as long as this process lives. Folders of drivers that were killed are removed.
    """
    short = os.environ.get("RAY_TMPDIR", "/tmp")  # noqa: S108 -- only its owner may enter the folder
    remove_abandoned(Path(short))
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=short, ignore_cleanup_errors=True) as folder:
        held = os.open(f"{folder}/{DRIVER}", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(held)


def remove_abandoned(short: Path) -> None:
    """Remove this user's folders that no driver holds. A new one may not be locked yet; older releases lock none."""
    for folder in short.glob(f"{PREFIX}*"):
        if folder.is_symlink():
            continue
        with contextlib.suppress(OSError):  # somebody else's, in use, or gone meanwhile
            held = os.open(folder / DRIVER, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would be waited for
            try:
                found = os.fstat(held)
                if found.st_uid == os.geteuid() and time.time() - found.st_ctime > NEW_SECONDS:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def start(folder: str) -> Any:
    """Start a Ray on this machine alone, on loopback, that answers nobody without its token."""
    if "ray" in sys.modules:
        raise DcpgError("Ray was loaded before its environment was set; this is a mistake in dcpg.")
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # on every system: no cluster over the network, therefore loopback
    )
    if not os.environ.get("RAY_AUTH_TOKEN") and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    sizes: dict[str, Any] = {"num_cpus": available_cores(), "object_store_memory": STORE, "_memory": int(free_memory())}
    place: dict[str, Any] = {"address": "local", "_node_ip_address": "127.0.0.1", "_temp_dir": f"{folder}/r"}
    ray = _init(**place, include_dashboard=False, **sizes)
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    if not all(ipaddress.ip_address(address).is_loopback for address in addresses):
        ray.shutdown()
        raise DcpgError(f"Ray listens on {', '.join(sorted(addresses))} instead of loopback alone, and was ended.")
    return ray


def connect(address: str) -> Any:
    """Connect to the user's cluster, as it is."""
    from ray.exceptions import RayError

    try:
        return _init(address=address)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        first = str(error).strip().split("\n", 1)[0]
        raise BadInput(f"No Ray cluster can be reached at {address} ({type(error).__name__}: {first}).") from None


def _init(**options: Any) -> Any:
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # each is reported as an outcome
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; unset, Ray warns
    import ray

    with _signals_kept():
        ray.init(log_to_driver=False, configure_logging=False, **options)
    return ray


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore our handlers of signals: Ray replaces that of SIGTERM by its own."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # not the main thread: then Ray has replaced none
                signal.signal(number, handler)
