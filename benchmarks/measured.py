"""Runs one program to its end and measures it: wall time, processor time, peak memory."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.02


class Failed(Exception):
    """A measured program ended in failure; the text holds the end of what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run of a program took.

    ``seconds`` counts from the start of the process, ``cpu_seconds`` is its own processor time,
    ``peak_mib`` its largest resident memory, ``ended_at`` is on the wall clock, in nanoseconds.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float
    ended_at: int
    output: str


def run(
    command: Sequence[str | Path],
    folder: Path,
    *,
    discard: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Measured:
    """Run ``command`` in ``folder``; ``discard`` sends its output to /dev/null, unseen.

    Raises: Failed when its status is not 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout").open("w+") as output, (folder / "stderr").open("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if discard else output,
            stderr=errors,
            env={**os.environ, **(environment or {})},
        )
        memory = _PeakMemory(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        seconds, ended_at = time.perf_counter() - started, time.time_ns()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read()
        if process.returncode:
            errors.seek(0)
            raise Failed(
                f"{command[0]} ended with status {process.returncode}\n"
                f"{said[-1000:]}{errors.read()[-2000:]}"
            )
    return Measured(
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=memory.stop() / 1024,
        ended_at=ended_at,
        output=said,
    )


class _PeakMemory:
    """Watches the largest resident set of a process, in KiB, until it is stopped.

    The kernel's own account at the end (``ru_maxrss``) counts from before the program was loaded,
    when the process was still a copy of this one.
    """

    def __init__(self, pid: int) -> None:
        self._status, self._peak = Path(f"/proc/{pid}/status"), 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End the watch and return the peak."""
        self._done.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            try:
                text = self._status.read_text(encoding="ascii", errors="replace")
            except OSError:
                return  # it has ended
            if match := re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE):
                self._peak = int(match[1])
