"""Memory of this process: settings of the allocator, out-of-memory errors and peak use."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import resource

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


# messages of out-of-memory errors on the CPU, for which torch has no class; the last two: threads, oneDNN kernels
REFUSALS = ("allocate memory", "bad_alloc", "can't start new thread", "could not create a primitive")


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


def memory_was_refused(error: BaseException) -> bool:
    """Whether an error means that there is no memory left, on the CPU or on an accelerator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in REFUSALS)


def peak_gb() -> float:
    """The peak resident memory of this process, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if platform.system() == "Darwin" else peak * 1024 / 1e9
