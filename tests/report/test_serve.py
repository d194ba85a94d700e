"""`dcpg report --watch`: what is served, to whom, and that the page refreshes itself."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcpg.errors import BadInput
from dcpg.report import serve
from dcpg.report.serve import ReportServer, serve_report
from dcpg.report.write import write_report
from tests import synthetic
from tests.browser import until


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_only_what_was_generated_is_served(tmp_path: Path) -> None:
    run = synthetic.some(tmp_path / "runs" / "one", "ppo")
    out = tmp_path / "out"
    report = write_report([run.path], out, pictures=False)
    (out / "secret.txt").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (out / "tables" / "link.csv").symlink_to(tmp_path / "secret.txt")
    found = ReportServer(0)
    found.publish(out, report)
    host, port = found.server_address[:2]
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        assert host == "127.0.0.1"
        assert ask(port, "/") == (200, (out / "report.html").read_bytes())
        assert ask(port, "/tables/table1.csv") == (200, (out / "tables" / "table1.csv").read_bytes())
        assert ask(port, "/version") == (200, report.version.encode())
        assert ask(port, "/report.html?again=1")[0] == 200
        assert ask(port, "/report.html", "HEAD") == (200, b"")
        for path in (
            "/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/tables/../secret.txt", "/tables/../../secret.txt",
            "//secret.txt", "/tables/link.csv", "/tables/", "/..%2fsecret.txt", str(tmp_path / "secret.txt"),
            f"/{tmp_path}/secret.txt", "/runs/one/config.json", "/\\..\\secret.txt", "secret.txt",
        ):  # fmt: skip
            status, body = ask(port, path)
            assert status == 404, path
            assert b"secret" not in body, path
        assert ask(port, "/", host="evil.example:80")[0] == 403
        assert ask(port, "/", host="")[0] == 403
        assert ask(port, "/", "POST")[0] == 501
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


@pytest.fixture
def served() -> Iterator[int]:
    """The port of a server without a report."""
    found = ReportServer(0)
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield int(found.server_address[1])
    found.shutdown()
    found.server_close()
    thread.join()


def was_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:  # with something that was not read
        return True


def test_connections_that_never_ask_hold_up_nobody(served: int, capfd: pytest.CaptureFixture[str]) -> None:
    """200 of them, after each twenty of which somebody asks in earnest."""
    before, threads = threading.active_count(), list[int]()
    with contextlib.ExitStack() as opened:
        held = []
        for number in range(200):
            held.append(opened.enter_context(socket.create_connection(("127.0.0.1", served), timeout=20)))
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0"[: number % 29])
            if number % 20 == 19:
                assert ask(served, "/version") == (200, b"")
            threads.append(threading.active_count() - before)
        assert max(threads) <= serve.MOST + 1  # one may be about to end
        assert all(map(was_ended, held[:100]))  # the oldest
    assert ask(served, "/version") == (200, b"")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("part", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX: "])
def test_a_connection_has_a_time_limit(served: int, part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it sends something."""
    monkeypatch.setattr(serve, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", served), timeout=20) as held:
        held.sendall(part)
        held.settimeout(0.05)
        for _ in range(400):
            try:
                assert was_ended(held)
                break
            except TimeoutError:
                with contextlib.suppress(OSError):
                    held.sendall(b"a" if part else b"")
        else:
            raise AssertionError("it went on")


def test_the_usual_port_may_be_left_out(served: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser asks for `localhost` if the port is 80, which needs rights that tests do not have."""
    assert [ask(served, "/version", host=host)[0] for host in ("localhost", "127.0.0.1")] == [403, 403]
    monkeypatch.setattr(serve, "HTTP_PORT", served)
    hosts = ("localhost", "127.0.0.1", f"localhost:{served}", "evil.example", "evil.example:80", "")
    assert [ask(served, "/version", host=host)[0] for host in hosts] == [200, 200, 200, 403, 403, 403]


def test_a_report_that_fails_is_tried_again_and_said_once(tmp_path: Path) -> None:
    run = synthetic.some(tmp_path / "runs" / "one", "ppo").path
    stop, shown, written = threading.Event(), list[str](), list[Any]()

    def write(draw: bool) -> Any:
        written.append(draw)
        if len(written) in (2, 3, 4):
            raise OverflowError(34, "Numerical result out of range")
        return write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)

    def wait_for(count: int) -> None:
        for _ in range(600):
            if len(written) >= count:
                return
            threading.Event().wait(0.05)
        raise AssertionError(shown)

    given = ([tmp_path / "runs"], tmp_path / "out", 0, write)
    more = {"every": 0.05, "show": shown.append, "stop": stop}
    thread = threading.Thread(target=serve_report, args=given, kwargs=more, daemon=True)
    thread.start()
    try:
        wait_for(1)
        (run / "replay.mp4").write_bytes(b"x")
        wait_for(5)  # the file does not change again
        assert [line for line in shown if "OverflowError" in line] == shown[1:]
        assert len(shown) == 2
        assert "Numerical result out of range" in shown[1]
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.parametrize("interrupted", [False, True])
def test_figures_catch_up_without_another_change_and_at_the_end(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic.some(tmp_path / "runs" / "one", "ppo").path
    report = write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    now, looks, written = [1000.0], list[float](), list[tuple[int, bool]]()

    class Looks(threading.Event):
        """Instead of waiting: what happens between two looks at the runs."""

        def wait(self, timeout: float | None = None) -> bool:
            looks.append(now[0])
            if len(looks) in (1, 4):
                (run / "replay.mp4").write_bytes(b"x" * len(looks))
            now[0] += serve.DRAW_EVERY * (1.5 if len(looks) == 2 else 0.1)
            if len(looks) == 6 and interrupted:
                raise KeyboardInterrupt
            return len(looks) == 6

    def write(draws: bool) -> Any:
        written.append((len(looks), draws))
        return report

    monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda: now[0]))
    serve_report([tmp_path / "runs"], tmp_path / "out", 0, write, show=lambda text: None, stop=Looks())
    # the first, a change, its figures when it is time, a change, its figures at the end
    assert written == [(0, True), (1, False), (2, True), (4, False), (6, True)]


def test_a_port_in_use_is_one_sentence() -> None:
    first = ReportServer(0)
    try:
        with pytest.raises(BadInput, match="choose another --port"):
            ReportServer(first.server_address[1])
    finally:
        first.server_close()


def test_the_watched_page_refreshes_itself(tmp_path: Path, look: Any) -> None:
    config = synthetic.configuration("ppo", "bigfish", 0, preset="tiny")
    rows = synthetic.rows_of(config, random.Random(0), rollouts=(1, 8, 16))
    run = synthetic.write(tmp_path / "runs" / "one", config, rows[:2])
    other = synthetic.some(tmp_path / "runs" / "two", "dcpg", "bigfish")
    out, stop, shown, ready = tmp_path / "out", threading.Event(), list[str](), threading.Event()

    def show(text: str) -> None:
        shown.append(text)
        ready.set()

    def write(draw: bool) -> Any:
        return write_report([tmp_path / "runs"], out, pictures=False)

    given = ([tmp_path / "runs"], out, 0, write)
    more = {"every": 0.2, "show": show, "stop": stop}
    thread = threading.Thread(target=serve_report, args=given, kwargs=more, daemon=True)
    thread.start()
    try:
        assert ready.wait(60)
        view = look(shown[0].split()[0])
        page = view.page
        assert page.evaluate("dcpgReport.data.runs") == {"finished": 1, "unfinished": 1, "problems": 0}
        view.press("curves", "train")
        with open(run / "eval.jsonl", "a") as file:
            file.write(json.dumps(rows[2]) + "\n")
        until(page, "window.dcpgReport && dcpgReport.data.runs.finished === 2")
        assert page.get_attribute('[data-control="curves"] [data-value="train"]', "aria-pressed") == "true"
        assert view.charts("curves")[0]["lines"][0]["y"] == [row["train_return"] for row in rows]
        (other.path / "eval.jsonl").write_text("torn")  # what is wrong now is shown on the page that comes next
        until(page, "window.dcpgReport && dcpgReport.data.runs.problems > 0")
        assert view.errors == []
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
