"""Memory of this process: settings of the allocator, out-of-memory errors and peak use."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import platform
import resource

from dcpg.errors import OutOfMemory, causes
from dcpg.text import gigabytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


# messages of errors that have no class of their own: of torch's allocator, threads, oneDNN's kernels, zstd, and of
# libraries that cannot be loaded
REFUSALS = (
    "allocate memory", "bad_alloc", "can't start new thread", "could not create a primitive", "not enough memory",
    "failed to map segment", "cannot map zero-fill pages", "out of memory",
)  # fmt: skip
TORCH = 0.7e9  # bytes of address space that torch and what it loads take, without CUDA


LARGEST = 32 * 2**20  # the largest threshold that glibc accepts; a chunk's largest tensor is 30 MiB at the paper's size


def keep_freed_memory() -> None:
    """Let glibc keep freed memory instead of returning it to the system after every chunk.

    A training pass allocates and frees about 100 MB per chunk. If that is returned, every page is zeroed and mapped
    again: 9,000 to 34,000 page faults per pass, a tenth to a fifth of its time. Without glibc this does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)


def memory_was_refused(error: BaseException | None) -> bool:
    """Whether an error means that there is no memory left, on the CPU or on an accelerator, or came of one that does.

    This needs nothing but Python: torch itself may be what did not fit. Its errors are RuntimeErrors.
    """
    return any(_is_refusal(one) for one in causes(error))


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # libraries are loaded by import (ImportError) and by ctypes (OSError without a number)
    loading = isinstance(error, ImportError) or (isinstance(error, OSError) and error.errno is None)
    told = isinstance(error, RuntimeError) or loading or type(error).__name__ in ("ZstdError", "SafetensorError")
    return told and any(words in str(error) for words in REFUSALS)


def address_limit() -> float:
    """The most bytes of address space that this process may have (`ulimit -v`); infinite without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else float(limit)


def check_limit() -> None:
    """Refuse a limit under which torch cannot even be loaded: without memory its libraries abort the process."""
    if address_limit() < TORCH:
        raise OutOfMemory(
            f"There is no room for torch: this process may have at most {gigabytes(address_limit())} of address space "
            f"(ulimit -v), and torch takes {gigabytes(TORCH)}. Raise the limit."
        )


def address_room() -> float:
    """Bytes of address space that this process may still take."""
    import psutil

    return address_limit() - psutil.Process().memory_info().vms


def peak_gb() -> float:
    """The peak resident memory of this process, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if platform.system() == "Darwin" else peak * 1024 / 1e9
