"""`dcpg report --watch`: serves the page on the loopback address and makes it again when the runs have moved on."""

from __future__ import annotations

import mimetypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput, DcpgError
from dcpg.report.write import Report

LOOPBACK = "127.0.0.1"


DRAW_EVERY = 300.0  # seconds between two drawings of the figures, which take longer than the page


WAITING = (
    b'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="3"><title>dcpg report</title>'
    b'<link rel="icon" href="data:,">'
    b"<body style='font-family:system-ui;margin:4rem auto;max-width:40rem;color-scheme:light dark'>"
    b"<p>No run has an evaluation yet. This page shows the report as soon as one has.</p>"
)


WATCHED = ("eval.jsonl", "config.json", "replay.mp4", "ood-actions.json", "levels.json")


class Shelf:
    """What may be served: the files that were generated, by the name under which they are asked for, and no others."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}
        self.version = ""

    def put(self, out: Path, report: Report) -> None:
        """Put a report's files there besides those that are."""
        names = {f"/{path.relative_to(out).as_posix()}": path for path in report.files}
        self._files = {**self._files, **names, "/": out / "report.html"}
        self.version = report.version

    def find(self, asked: str) -> Path | None:
        """By its exact name; a name is looked up, never joined to a directory."""
        return self._files.get(asked.partition("?")[0])


def server(shelf: Shelf, port: int) -> ThreadingHTTPServer:
    """Answers on the loopback address alone, and only to requests that ask for it by that address."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "dcpg", ""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            if not self._asked_here():  # another site's page could otherwise read this one under a name of its own
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            if self.path == "/version":
                self._send(shelf.version.encode(), "text/plain; charset=utf-8", body)
                return
            path = shelf.find(self.path)
            if self.path == "/" and path is None:
                self._send(WAITING, "text/html; charset=utf-8", body)
                return
            try:
                data = path.read_bytes() if path is not None else None
            except OSError:
                data = None
            if path is None or data is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            kind = mimetypes.guess_type(path.name)[0] or "text/plain"
            self._send(data, f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, body)

        def _asked_here(self) -> bool:
            host = self.headers.get("Host", "")
            return host.rpartition(":")[0] in (LOOPBACK, "localhost")

        def _send(self, data: bytes, kind: str, body: bool) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal belongs to the report."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except (OSError, OverflowError) as error:
        raise BadInput(f"Port {port} cannot be used ({error}); choose another --port, or 0 for a free one.") from None


def watch(
    directories: Sequence[Path],
    out: Path,
    port: int,
    seconds: float,
    again: Callable[[bool], Report],  # with pictures or without
    say: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Serve until `stop` is set or Ctrl-C; a report that cannot be made leaves the one before it standing."""
    shelf = Shelf()
    found = server(shelf, port)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    say(f"http://{LOOPBACK}:{found.server_address[1]}/   (Ctrl-C ends it)")
    seen, drawn = None, -DRAW_EVERY
    try:
        while True:
            now = stamp(directories)
            if now != seen:
                seen, draws = now, time.monotonic() - drawn > DRAW_EVERY
                try:
                    shelf.put(out, again(draws))
                    drawn = time.monotonic() if draws else drawn
                except DcpgError as error:
                    say(f"Not made: {error}")
            if stop.wait(seconds):
                return
    except KeyboardInterrupt:
        say("")
    finally:
        found.shutdown()
        found.server_close()


def stamp(directories: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    """Size and time of every file that a report is made of."""
    found = []
    for top in directories:
        for folder, below, files in os.walk(top):
            below[:] = [name for name in below if name not in ("checkpoints", "milestones", "tb")]
            for name in files:
                if name in WATCHED:
                    path = Path(folder) / name
                    try:
                        state = path.stat()
                    except OSError:
                        continue
                    found.append((str(path), state.st_size, state.st_mtime_ns))
    return tuple(sorted(found))
