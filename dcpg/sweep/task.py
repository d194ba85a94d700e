"""What a Ray worker runs. Ray finds it by its name, so that every node runs the dcpg that is installed there."""

from __future__ import annotations

import dataclasses
import socket
import time
from pathlib import Path
from typing import Any

from dcpg.errors import DcpgError, Stopped
from dcpg.sweep.attempt import Order, Outcome, attempt
from dcpg.sweep.layout import Layout
from dcpg.sweep.probe import asked_to_stop, sees

PATIENCE = 60.0  # seconds that a node has to prove that it sees the sweep's directory
LOOK = 2.0  # seconds between two looks at whether it should stop, which cost the shared storage something
BEFORE = "It was asked to stop before it began."
_unseen: set[str] = (
    set()
)  # drivers whose directory this worker does not see; what was queued for it is sent back at once


def carry_out(order: dict[str, Any], driver: str) -> dict[str, Any]:
    """One attempt, once the node has proved that it sees the sweep's directory. Takes and gives plain data."""
    import ray

    given = Order(**order)
    folder = Layout(Path(given.root)).nodes
    node, host = ray.get_runtime_context().get_node_id(), socket.gethostname()

    looked = -LOOK

    def should_stop() -> bool:
        nonlocal looked
        if time.monotonic() - looked < LOOK:
            return False
        looked = time.monotonic()
        return asked_to_stop(folder, driver)

    seen = driver not in _unseen and sees(folder, driver, node, PATIENCE, should_stop)
    if asked_to_stop(folder, driver):
        return _plain(given, Stopped.exit_code, host, BEFORE)
    if not seen:
        _unseen.add(driver)
        return {"blind": node, "host": host}
    try:
        return dataclasses.asdict(attempt(given, should_stop))
    except Exception as error:  # the disk refused, or the process could not be started
        code = error.exit_code if isinstance(error, DcpgError) else 1
        return _plain(given, code, host, f"{type(error).__name__}: {error}")


def _plain(order: Order, code: int, host: str, text: str) -> dict[str, Any]:
    return dataclasses.asdict(Outcome(order.name, code, host, text))
