"""Keep freed memory in the process, so that a training step does not request it from the system again."""

import ctypes
import os
import sys

# Constants of glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have glibc's malloc keep freed memory, and return whether it does.

    Without this, each activation of a step on the CPU is a new mapping, and the system clears its pages one
    by one. That takes up to a third of a step of a small network (`benchmarks.throughput`, with and without
    MALLOC_OFF=1). The setting applies to the whole process, so commands may use it and a library may not.
    Other C libraries, and settings of the environment, are left as they are.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # Both: setting one of them alone ends glibc's own adjustment of the other.
    return all(mallopt(parameter, _NEVER) == 1 for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
