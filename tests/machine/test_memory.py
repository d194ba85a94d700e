"""Errors that mean that there is no memory, and limits of the address space."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from dcpg.errors import OutOfMemory
from dcpg.machine import guard, memory, needs
from dcpg.machine.guard import guarded
from dcpg.machine.memory import memory_was_refused

SEGMENT = "libtorch_cpu.so: failed to map segment from shared object"


def numpys_error() -> Exception:
    """What numpy raises itself for 2^62 bytes."""
    try:
        np.empty(2**59)
    except MemoryError as error:
        return error
    raise AssertionError("there was room")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        numpys_error(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        ImportError(SEGMENT),
        OSError(SEGMENT),  # of ctypes
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        zstandard.ZstdError("zstd compress error: Allocation error : not enough memory"),
        caused(ValueError("x"), MemoryError()),
        caused(AttributeError("partially initialized module 'torch'"), ImportError(SEGMENT)),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:30]}",
)
def test_one_place_knows_what_means_no_memory(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_was_refused(error)

    def work() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        guarded(work)
    assert ended.value.code == 7
    said = capsys.readouterr().err
    assert said == "dcpg: There was no memory left. What was saved is kept; free some memory and try again.\n"


def test_other_errors_mean_something_else() -> None:
    around = ValueError("x")
    around.__context__ = around  # a circle
    for error in (
        ValueError("out of memory"), RuntimeError("shapes differ"), ImportError("No module named 'x'"),
        OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EACCES, "cannot allocate memory"), KeyError(1),
        around,
    ):  # fmt: skip
        assert not memory_was_refused(error)
        with pytest.raises(type(error)):
            guarded(lambda error=error: (_ for _ in ()).throw(error))  # type: ignore[misc]


def test_the_message_names_the_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(guard, "address_limit", lambda: 2e9)
    with pytest.raises(SystemExit):
        guarded(lambda: (_ for _ in ()).throw(MemoryError()))
    assert "This process may have at most 2.0 GB (ulimit -v)." in capsys.readouterr().err


def test_a_limit_of_the_address_space_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.address_limit() == float("inf")
    memory.check_limit()
    needs.check_address_space()
    monkeypatch.setattr(resource, "getrlimit", lambda what: (500_000_000, 0))
    with pytest.raises(OutOfMemory, match=r"no room for torch: this process may have at most 0.50 GB"):
        memory.check_limit()
    monkeypatch.setattr(needs, "address_room", lambda: 0.4e9)
    with pytest.raises(OutOfMemory, match=r"0.40 GB are free, and it takes 0.60 GB more"):
        needs.check_address_space()


LIMITED = """import resource, sys
resource.setrlimit(resource.RLIMIT_AS, 2 * (int(sys.argv.pop(1)),))
from dcpg.cli.app import main
main()"""


def under_limit(megabytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process with a real limit of its address space."""
    command = [sys.executable, "-c", LIMITED, str(megabytes * 10**6), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("megabytes", "code", "said"), [(300, 7, "no room for torch"), (900, 2, "address space, 0.90 GB (ulimit -v)")]
)
def test_a_run_under_a_real_limit_is_refused(tmp_path: Path, megabytes: int, code: int, said: str) -> None:
    out = tmp_path / "run"
    ended = under_limit(megabytes, "train", "ppo", "--game", "maze", "--preset", "tiny", "--out", str(out))
    assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr
    assert said in ended.stderr
    assert not out.exists()
