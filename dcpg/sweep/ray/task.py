"""What a Ray worker runs. Ray finds it by its name, so that every node runs the dcpg that is installed there."""

from __future__ import annotations

import dataclasses
import socket
import time
from pathlib import Path
from typing import Any

from dcpg.sweep.attempt import Order, attempt, never_begun, not_possible
from dcpg.sweep.directory import Layout
from dcpg.sweep.ray.handshake import asked_to_stop, sees

PATIENCE = 60.0  # seconds that a node has to prove that it sees the sweep's directory


LOOK = 2.0  # seconds between two looks at whether it should stop, which cost the shared storage something


# drivers whose directory this worker does not see: what was queued for it is sent back at once
_unseen: set[str] = set()


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
        return dataclasses.asdict(never_begun(given))
    if not seen:
        _unseen.add(driver)
        return {"blind": node, "host": host}
    try:
        return dataclasses.asdict(attempt(given, should_stop))
    except Exception as error:
        return dataclasses.asdict(not_possible(given, error))
