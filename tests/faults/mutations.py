"""Damage files in many ways, and see what their readers make of them.

`judge(specimen, folder, count, seed)` writes what a specimen is, mutates its file again and again, and reads
each in a forked process with a limit on time, and on memory, which is twice that of a process that reads the
whole file. Of files that pfge writes, only two outcomes are allowed: an error in one line, or the same
content.
"""

import os
import random
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.harness import SECONDS, limit_memory

ADDRESS_SPACE = 2_000_000_000
"""Bytes beside what the process has; a reader that takes more is stopped."""

CLEAR, IRRELEVANT = "clear error", "irrelevant"
FOREIGN = "a file of others, read for the first time"
DIFFERENT, TRACEBACK, HANG, OUT_OF_MEMORY = (
    "silently different",
    "traceback",
    "over 10 s",
    "over twice the memory",
)
OUTCOMES = (CLEAR, IRRELEVANT, FOREIGN, DIFFERENT, TRACEBACK, HANG, OUT_OF_MEMORY)
ALLOWED = (CLEAR, IRRELEVANT, FOREIGN)
"""The third is other content of a file that pfge did not write, without a checksum, before a run has kept its
digest: nothing can tell that it was another one."""


@dataclass(frozen=True)
class Read:
    """What a reader found.

    Args:
        content: Compared by its repr.
        complaints: What it says of damage beside the content.
    """

    content: Any
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Specimen:
    """A file of a kind that pfge reads.

    Args:
        write: Makes it in a folder that exists, with whatever belongs to it, and returns its path.
        read: Reads it as users do.
        is_unknown: Whether it is a file of others that has no checksum, and is read for the first time.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Read]
    is_unknown: bool = False


@dataclass
class Judgment:
    """How often each outcome was, and examples of those that are not allowed."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def mutate(data: bytes, generator: random.Random) -> tuple[str, bytes]:
    """Return what is done to a file, and what it is then."""
    size = len(data)
    start, other = sorted(generator.randrange(size + 1) for _ in range(2))
    length = min(generator.choice([1, 2, 8, 64, 500]), max(size - start, 1))
    kind = generator.choice(
        ["flip a bit", "set a byte", "truncate", "delete", "duplicate", "swap", "insert", "zero", "line"]
    )
    match kind:
        case "flip a bit" if size:
            place = generator.randrange(size)
            flipped = data[place] ^ (1 << generator.randrange(8))
            return f"{kind} at {place}", data[:place] + bytes([flipped]) + data[place + 1 :]
        case "set a byte" if size:
            place = generator.randrange(size)
            return f"{kind} at {place}", data[:place] + generator.randbytes(1) + data[place + 1 :]
        case "truncate":
            return f"{kind} to {start}", data[:start]
        case "delete":
            return f"{kind} {length} at {start}", data[:start] + data[start + length :]
        case "duplicate":
            part = data[start : start + length]
            return f"{kind} {length} at {start}", data[: start + length] + part + data[start + length :]
        case "swap":
            length = min(length, other - start, size - other)
            first, second = data[start : start + length], data[other : other + length]
            middle, rest = data[start + length : other], data[other + length :]
            return f"{kind} {length} at {start}, {other}", data[:start] + second + middle + first + rest
        case "insert":
            return f"{kind} {length} at {start}", data[:start] + generator.randbytes(length) + data[start:]
        case "zero":
            return f"{kind} {length} at {start}", data[:start] + bytes(length) + data[start + length :]
    lines = data.splitlines(keepends=True)
    index = generator.randrange(len(lines) or 1)
    if generator.random() < 0.5:
        return f"delete line {index}", b"".join(lines[:index] + lines[index + 1 :])
    return f"duplicate line {index}", b"".join(lines[: index + 1] + lines[index:])


def judge(specimen: Specimen, folder: Path, count: int, seed: int) -> Judgment:
    """Mutate a file so many times, and count what becomes of it."""
    folder.mkdir(parents=True)
    path = specimen.write(folder)
    whole = path.read_bytes()
    generator = random.Random(seed)
    mutations = [mutate(whole, generator) for _ in range(count)]
    expected = specimen.read(path)
    judgment = Judgment()
    done = 0
    while done < count:
        rest = [data for _, data in mutations[done:]]
        for outcome, said in _read_in_child(specimen, path, whole, rest, expected):
            judgment.counts[outcome] += 1
            if outcome not in ALLOWED:
                judgment.examples.append(f"{outcome}: {mutations[done][0]}: {said}")
            done += 1
    path.write_bytes(whole)
    return judgment


def _read_in_child(
    specimen: Specimen, path: Path, whole: bytes, mutations: list[bytes], expected: Read
) -> Iterator[tuple[str, str]]:
    """Yield what became of each mutation, up to the first that ends the process."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        try:
            limit_memory(ADDRESS_SPACE)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            _read(specimen, path, whole, expected)
            most = 2 * _peak_memory()
            for data in mutations:
                signal.alarm(SECONDS)
                outcome, said = _read(specimen, path, data, expected)
                signal.alarm(0)
                if _peak_memory() > most:
                    outcome, most = OUT_OF_MEMORY, 2 * _peak_memory()
                message = f"{outcome}\n{said[:300]}".encode(errors="backslashreplace")
                os.write(into, struct.pack("<I", len(message)) + message)
        finally:
            os._exit(0)
    os.close(into)
    read = 0
    with os.fdopen(out, "rb") as pipe:
        while len(size := pipe.read(4)) == 4:
            outcome, _, said = pipe.read(struct.unpack("<I", size)[0]).decode().partition("\n")
            read += 1
            yield outcome, said
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if read < len(mutations):
        yield (HANG if code == -signal.SIGALRM else TRACEBACK), f"the process ended with {code}"


def _peak_memory() -> int:
    """Return the most that was resident in this process so far, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _read(specimen: Specimen, path: Path, data: bytes, expected: Read) -> tuple[str, str]:
    path.write_bytes(data)
    try:
        found = specimen.read(path)
    except (ValueError, OSError) as error:  # what the command shows in one line
        return CLEAR, str(error)
    except MemoryError:
        return OUT_OF_MEMORY, ""
    except BaseException as error:
        return TRACEBACK, f"{type(error).__name__}: {error}"
    if repr(found) == repr(expected):
        return IRRELEVANT, ""
    if found.complaints != expected.complaints:
        return CLEAR, "; ".join(found.complaints)
    return (FOREIGN if specimen.is_unknown else DIFFERENT), f"{found.content!r}"
