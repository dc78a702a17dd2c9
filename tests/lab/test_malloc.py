"""Freed memory stays with the process, where the C library can be told so."""

import os
import subprocess
import sys

import pytest

STEP_FAULTS = """
import resource, sys, torch
from pfge.lab.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    both = [torch.ones(2**24) for _ in range(2)]  # larger than anything that malloc would keep unasked
    del both
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

# Small pieces that stay may land between the large ones at first, which then find other places.
print(min([faults_of_a_step() for _ in range(10)][3:]))
"""

needs_glibc = pytest.mark.skipif(
    "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") if sys.platform == "linux" else ""),
    reason="only glibc's malloc can be told",
)


def count_page_faults(mode: str, **environment: str) -> int:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", STEP_FAULTS, mode],
        env=clean | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(run.stdout)


@pytest.mark.slow
@needs_glibc
def test_a_step_finds_the_memory_of_those_before() -> None:
    pages = 2 * 2**24 * 4 // os.sysconf("SC_PAGE_SIZE")
    assert count_page_faults("leave") > pages / 2
    assert count_page_faults("keep") < pages / 100


@needs_glibc
def test_a_setting_in_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from pfge.lab.malloc import keep_freed_memory

    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not keep_freed_memory()
