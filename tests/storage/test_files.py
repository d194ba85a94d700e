"""The one reader and the one writer of files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from dcpg.errors import BadInput, InUse, Unavailable
from dcpg.storage import files, rows
from dcpg.storage.files import (
    DEEPEST,
    Unreadable,
    UnreadableNow,
    open_appending,
    own_folder,
    parse_json,
    read_json,
    read_regular,
    replacing,
    write_atomic,
)
from dcpg.storage.lock import Lock
from dcpg.storage.rows import Metrics, Rows, read_rows
from dcpg.storage.rundir import RunDirectory


def not_plain(folder: Path) -> list[Path]:
    """One of each kind of thing that is no plain file."""
    (folder / "elsewhere").write_bytes(b"{}\n")
    (folder / "link").symlink_to(folder / "elsewhere")
    (folder / "broken").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "endless").symlink_to("/dev/zero")
    return [*(folder / name for name in ("link", "broken", "pipe", "folder", "endless")), Path("/dev/zero")]


@pytest.mark.timeout(20)  # a pipe would be waited for, a device read without end
def test_only_plain_files_are_read_and_written_to(tmp_path: Path) -> None:
    for path in not_plain(tmp_path):
        with pytest.raises(OSError):  # the system's word differs from kind to kind
            read_regular(path, 100)
        with pytest.raises((Unreadable, FileNotFoundError)):
            read_json(path, 100)
        with pytest.raises(OSError):
            open_appending(path)
        with pytest.raises(BadInput, match="cannot be read"):
            read_rows(path)
        with pytest.raises(BadInput, match="cannot be written to"):
            Lock(path).acquire()
    assert (tmp_path / "elsewhere").read_bytes() == b"{}\n"
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nowhere", 100)
    assert read_rows(tmp_path / "nowhere") == []


def test_no_more_is_read_than_the_caller_expects(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(file, 4)
    with pytest.raises(OSError, match="more than 4 bytes"):  # its size is said to be 0, as of a file that grows
        read_regular(Path("/proc/self/status"), 4)
    with open(file, "wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(Unreadable, match="more than 1,000 bytes"):
        read_json(file, 1000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"), ("", "not JSON"), ("\xff", "not JSON"), ("NaN", "number nan"), ("[1, -Infinity]", "-inf"),
        ('{"a": [1e400]}', "number inf"), (f"[{10**400}]", "64 bits"), ("9" * 5000, "not JSON"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "deeply"), ("[" * 100_000, "deeply"),
        ('{"a":' * 100_000, "deeply"),
    ],
)  # fmt: skip
def test_json_that_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        parse_json(text.encode("latin-1"))


def test_json_that_is_read() -> None:
    nested: object = 2**64
    for _ in range(DEEPEST):
        nested = [nested]
    for value in (nested, {"a": None, "b": [True, -0.5, "x"]}, "\udcff"):  # the last: a file name that is not UTF-8
        assert parse_json(json.dumps(value).encode()) == value


def test_a_link_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "curves.png"
    mine.write_bytes(b"mine")
    for link in (out, tmp_path / ".tmp-curves.png"):
        link.symlink_to(mine)
    write_atomic(out, b"first")
    assert (out.is_symlink(), out.read_bytes(), mine.read_bytes()) == (False, b"first", b"mine")
    (tmp_path / ".tmp-curves.png").symlink_to(mine)
    with replacing(out) as temporary:
        temporary.write_bytes(b"second")
        assert out.read_bytes() == b"first"
    assert (out.read_bytes(), mine.read_bytes()) == (b"second", b"mine")
    with pytest.raises(ZeroDivisionError), replacing(out) as temporary:
        temporary.write_bytes(b"%d" % (1 // 0))
    assert out.read_bytes() == b"second"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "mine"]


def test_a_folder_inside_a_run_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tb").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="it is a link"):
        own_folder(tmp_path / "tb")
    assert own_folder(own_folder(tmp_path / "new")).is_dir()


def test_rows_without_content_do_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_COUNT", 1000)
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n" * 1001)
    assert rows.count_rows(tmp_path / "metrics.jsonl") == 1001
    with pytest.raises(BadInput, match="more than 1,000"):
        read_rows(tmp_path / "metrics.jsonl")


def test_rows_have_a_hash_that_survives_a_truncation(tmp_path: Path) -> None:
    def row(number: int) -> Metrics:
        nothing: dict[str, list[int]] = {f"episode_{name}": [] for name in ("returns", "lengths", "levels")}
        return Metrics.parse({"rollout": number, "steps": number, "reward_variance": 1.0} | nothing)

    written, hashes = Rows(tmp_path / "metrics.jsonl"), list[str]()
    for number in range(1, 4):
        written.append(row(number))
        hashes.append(written.sha256)
    assert len(set(hashes)) == 3
    written.truncate(2)
    assert written.sha256 == hashes[1]
    written.append(row(3))
    assert written.sha256 == hashes[2]
    again = Rows(tmp_path / "metrics.jsonl")
    again.truncate(3)
    assert again.sha256 == hashes[2]


def test_a_file_with_a_second_name_is_not_written_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("a line\n")
    for name in ("lock", "rows"):
        os.link(precious, tmp_path / name)
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
    lock.release()
    with open_appending(tmp_path / "rows") as file:
        file.write(b"another\n")
    assert (tmp_path / "rows").read_text() == "a line\nanother\n"
    assert precious.read_text() == "a line\n"


def test_a_file_with_a_second_name_that_cannot_be_copied_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("a line\n")
    os.link(precious, tmp_path / "rows")
    monkeypatch.setattr(files, "MOST_COPIED", 3)
    with pytest.raises(OSError, match="more than 3 bytes"):
        open_appending(tmp_path / "rows")
    assert precious.read_text() == "a line\n"


@pytest.mark.parametrize("text", ["[" + "[]," * 1_000_000 + "[]]", "{" + '"a":0,' * 2_000_001 + '"a":0}'])
def test_json_that_would_take_many_times_its_size_is_refused_unread(text: str) -> None:
    with pytest.raises(Unreadable, match="more lists, tables or columns than any file"):
        parse_json(text.encode())


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EIO, errno.ELOOP])
def test_storage_that_is_away_says_nothing_about_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def away(path: Path, most: int) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(files, "read_regular", away)
    with pytest.raises(Unreadable) as error:
        read_json(tmp_path / "config.json", 100)
    assert isinstance(error.value, UnreadableNow) == (number != errno.ELOOP)
    with pytest.raises(BadInput) as refused:
        RunDirectory(tmp_path).read_config()
    assert isinstance(refused.value, Unavailable) == (number != errno.ELOOP)


def test_two_that_write_one_file_are_not_mixed(tmp_path: Path) -> None:
    out = tmp_path / "x"
    with replacing(out) as first:
        first.write_bytes(b"first")
        with pytest.raises(InUse, match=r"Another process is writing .*x now"), replacing(out) as second:
            second.write_bytes(b"second")
        assert first.read_bytes() == b"first"
    assert out.read_bytes() == b"first"
    first.write_bytes(b"left by one that was killed")
    with replacing(out) as third:
        third.write_bytes(b"third")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x", b"third")]
