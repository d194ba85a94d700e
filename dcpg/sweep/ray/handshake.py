"""How a node proves that it sees the sweep's directory before its first run: it must read there and write there.

The driver writes a random secret. The node reads it and answers in a file of its own, whose name has a number that
nobody could know before. The driver reads the answer and confirms it with a third file, for which the node waits. A
node that has another directory under the same name, or an old copy, or may only read, gets no further. Folders are
listed, not single files asked for: on network storage a file's absence may be remembered for a while, but a folder that
is opened is looked at anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

POLL = 0.2  # seconds between two looks at the folder


OWN = re.compile(r"(secret|answer|seen|ready|stop)-[0-9a-f]{16}(-[0-9a-z]+)*")


class Desk:
    """The driver's side. `folder` is the sweep's folder `nodes`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver, self._secret = folder, secrets.token_hex(8), secrets.token_hex(16)
        folder.mkdir(parents=True, exist_ok=True)
        self._clear()  # what drivers that were killed have left; there is one driver at a time
        (folder / f"secret-{self.driver}").write_text(self._secret)
        (folder / f"ready-{self.driver}").touch()

    def confirm(self) -> None:
        """Look for answers and confirm those that are right."""
        for name in _listed(self.folder):
            if name.startswith(f"answer-{self.driver}-"):
                answer = self.folder / name
                with contextlib.suppress(OSError):  # it may be half written: then it is right the next time
                    if answer.read_text() == self._secret:
                        node = name.split("-")[2]
                        (self.folder / f"seen-{self.driver}-{node}").touch()
                        answer.unlink()

    def stop(self) -> None:
        """Ask every attempt, on any node, to save and end. A new name is possible where a new file is not."""
        os.replace(self.folder / f"ready-{self.driver}", self.folder / f"stop-{self.driver}")

    def close(self) -> None:
        """Leave nothing behind."""
        self._clear()

    def _clear(self) -> None:
        for name in _listed(self.folder):
            if OWN.fullmatch(name):
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()


def asked_to_stop(folder: Path, driver: str) -> bool:
    """Whether the driver asked; storage that does not answer for a moment is no reason to."""
    return f"stop-{driver}" in _listed(folder)


def sees(folder: Path, driver: str, node: str, patience: float, should_stop: Callable[[], bool]) -> bool:
    """A node's side: whether it and the driver see the same folder. Creates nothing where the folder is not."""
    secret, seen = f"secret-{driver}", f"seen-{driver}-{node}"
    answer = folder / f"answer-{driver}-{node}-{secrets.token_hex(8)}"
    answered, end = False, time.monotonic() + patience
    try:
        while time.monotonic() < end and not should_stop():
            names = _listed(folder)
            if seen in names:  # of this attempt's answer, or of another one's on the same node
                return True
            if not answered and secret in names:
                with contextlib.suppress(OSError):  # one may only read here
                    answer.write_text((folder / secret).read_text())
                    answered = True
            time.sleep(POLL)
        return False
    finally:
        with contextlib.suppress(OSError):
            answer.unlink(missing_ok=True)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
