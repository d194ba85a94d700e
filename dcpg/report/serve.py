"""`dcpg report --watch`: serves the page on the loopback address and makes it again when the runs have changed."""

from __future__ import annotations

import contextlib
import mimetypes
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput, DcpgError
from dcpg.report.write import Report
from dcpg.runs.folders import ROWS, walk
from dcpg.runs.records import FILES
from dcpg.storage.files import read_regular
from dcpg.text import printable, say

LOOPBACK = "127.0.0.1"
HTTP_PORT = 80
DRAW_EVERY = 300.0  # seconds between two drawings of the figures, which take longer than the page
WAITING = (
    b'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="3"><title>dcpg report</title>'
    b'<link rel="icon" href="data:,">'
    b"<body style='font-family:system-ui;margin:4rem auto;max-width:40rem;color-scheme:light dark'>"
    b"<p>There is no report yet: no run has an evaluation, or the terminal says what is wrong. This page shows it as "
    b"soon as there is one.</p>"
)
MOST_BYTES = 2**31  # of a file
MOST = 32  # connections at once, each with a thread
PATIENCE = 30.0  # seconds for a connection, from its first byte to the last one of the answer
# metrics.jsonl has a new row with every rollout, and what a report takes from it changes with few of them
WATCHED = {Path(name).name for name in (*FILES, "replay.mp4")} - {"metrics.jsonl"}


class ReportServer(ThreadingHTTPServer):
    """Serves the files of a report on the loopback address, and no others.

    Connections that never finish a request hold up no other: each has a time limit, and the oldest makes room for a new
    one when there are too many.
    """

    request_queue_size = 128

    def __init__(self, port: int) -> None:
        self._since: dict[Any, float] = {}  # connection -> when it began
        self._free = threading.BoundedSemaphore(MOST)
        self.files: dict[str, Path] = {}  # by the exact name in the address; no name is ever joined to a directory
        self.version = ""
        try:
            super().__init__((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"Port {port} cannot be used ({error}); choose another --port, or 0 for a free one."
            ) from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there is one to spare."""
        if not self._free.acquire(blocking=False):
            for oldest in sorted(self._since.copy(), key=lambda one: self._since.get(one, 0.0))[:1]:
                _end(oldest)
            if not self._free.acquire(timeout=1.0):
                self.shutdown_request(request)
                return
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection; every one ends here."""
        super().shutdown_request(request)
        if self._since.pop(request, None) is not None:
            self._free.release()

    def service_actions(self) -> None:
        """End the connections whose time is up; the serving loop calls this twice a second."""
        for request, since in self._since.copy().items():
            if time.monotonic() - since > PATIENCE:
                _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that was ended by either side."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def publish(self, out: Path, report: Report) -> None:
        """Serve the files of this report, too."""
        names = {f"/{path.relative_to(out).as_posix()}": path for path in report.files}
        self.files = {**self.files, **names, "/": out / "report.html"}
        self.version = report.version


def _end(connection: socket.socket) -> None:
    """Let whoever reads from a connection or writes to it go on at once."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: ReportServer
    server_version, sys_version = "dcpg", ""

    def do_GET(self) -> None:
        given = self.headers.get("Host", "")
        is_usual = self.server.server_address[1] == HTTP_PORT  # which browsers leave out
        host = given if is_usual and ":" not in given else given.rpartition(":")[0]
        if host not in (LOOPBACK, "localhost"):  # or another site's page could read this one under its own name
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        data, kind = self._content(self.path.partition("?")[0])
        if data is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def _content(self, name: str) -> tuple[bytes | None, str]:
        path = self.server.files.get(name)
        if path is None:
            fixed = {"/version": (self.server.version.encode(), "text/plain"), "/": (WAITING, "text/html")}
            return fixed.get(name, (None, ""))
        try:
            return read_regular(path, MOST_BYTES), mimetypes.guess_type(path.name)[0] or "text/plain"
        except OSError:
            return None, ""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal shows the messages of the report."""


def serve_report(
    directories: Sequence[Path],
    out: Path,
    port: int,
    write: Callable[[bool], Report],  # the argument: whether to draw the figures
    *,
    every: float = 3.0,  # seconds between two looks at the runs
    show: Callable[[str], None] = say,
    stop: threading.Event | None = None,
) -> None:
    """Serve until `stop` is set or Ctrl-C is pressed; if a report cannot be written, the last one stays.

    Figures take longer than the page, and may be behind it for `DRAW_EVERY` seconds. At the end they are not.
    """
    server, stop = ReportServer(port), stop or threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    show(f"http://{LOOPBACK}:{server.server_address[1]}/   (Ctrl-C ends it)")
    watched = _Watched(directories, lambda draws: server.publish(out, write(draws)), show)
    try:
        try:
            watched.look()
            while not stop.wait(every):
                watched.look()
        except KeyboardInterrupt:
            show("")
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: without the last figures
            watched.look(ends=True)
    finally:
        server.shutdown()
        server.server_close()


class _Watched:
    """What a watched report was last made from, and whether its figures are behind its page."""

    def __init__(self, directories: Sequence[Path], make: Callable[[bool], None], show: Callable[[str], None]) -> None:
        self.directories, self.make, self.show = directories, make, show
        self.seen: list[tuple[str, int, int]] | None = None
        self.drawn, self.behind, self.failure = -DRAW_EVERY, False, ""

    def look(self, ends: bool = False) -> None:
        """Make the report again if runs have changed, or if its figures are behind and it is time, or the end."""
        before, self.failure = self.failure, ""
        try:
            now = file_states(self.directories)
            draws = ends or time.monotonic() - self.drawn > DRAW_EVERY
            if (now != self.seen and not ends) or (self.behind and draws):
                self.make(draws)
                self.seen, self.behind = now, not draws
                self.drawn = time.monotonic() if draws else self.drawn
        except DcpgError as error:
            self.failure = f"Not made: {error}"
        except Exception as error:  # of one run, which may be anybody's: the others are still watched
            self.failure = f"Not made, by a mistake of the program: {type(error).__name__}: {printable(error)}"
        if self.failure and self.failure != before:  # the cause may pass: it is tried again, and said once
            self.show(self.failure)


def file_states(directories: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Name, size and time of every file that a report is made from."""
    found = []
    for top in directories:
        for folder, below, files in walk(top):
            if ROWS.intersection(files):  # of a run
                below[:] = [name for name in below if name not in ("checkpoints", "milestones", "tb")]
            for name in WATCHED.intersection(files):
                path = Path(folder) / name
                try:
                    state = path.stat()
                except OSError:
                    continue
                found.append((str(path), state.st_size, state.st_mtime_ns))
    return sorted(found)
