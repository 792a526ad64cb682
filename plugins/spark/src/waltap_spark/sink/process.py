"""Run the Spark process of an engine.

The engine starts the process, restarts it after a death, and waits for it at the end.
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from waltap.base.files.durable_file import private, private_folder
from waltap.errors import SinkError
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver.settings import (
    GIVEN,
    LOCKED,
    REFUSED,
    SUSPENDED,
    UNREACHABLE,
    packed_settings,
)
from waltap_spark.errors import ApplierFailed, ChunkSourceUnreachable, JvmEnded
from waltap_spark.session.failures import NO_MEMORY
from waltap_spark.state.output import OutputState

log = logging.getLogger(__name__)

# Deaths in a row that are answered by a restart.
RESTARTS: Final = 5

# A process that lived so many seconds, or made a commit, resets the count of deaths.
CALM_S: Final = 300.0

# Seconds between two looks at the tables' last commit.
POLL_S: Final = 10.0

REPORT_EVERY_S: Final = 5.0

# A stop may come during the wait for the child.
WAIT_S: Final = 0.5
# What the engine needs for the rest of its end, out of the operator's time for a stop.
SPARE_S: Final = 0.5
# Bytes of the child's log that are searched from its end for a reason.
LOOKED_AT: Final = 1 << 20


class DriverProcess:
    """A child that runs `waltap_spark.driver.driver`. Single-threaded."""

    def __init__(
        self, properties: SparkProperties, log_file: Path, time_left: Callable[[], float]
    ) -> None:
        """Prepare a child; ``time_left`` is `SinkContext.time_left`."""
        self._properties = properties
        self._changelog, self._output = properties.changelog, properties.tables
        self._log_file, self._time_left = log_file, time_left
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._log_began = 0
        self._deaths = 0
        self._reached = 0
        self._started = 0.0
        self._next_poll = 0.0
        self._reported: set[str] = set()
        self._given = b""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the child, unless it already runs."""
        if self._child is not None:
            return
        command = [sys.executable, "-m", "waltap_spark.driver.driver"]
        command += ["--changelog", self._changelog, "--output", self._output]
        if self._log is None:
            private_folder(self._log_file.parent)
            self._log = open(self._log_file, "ab", opener=private)  # noqa: SIM115 - `close` does it
        self._log_began = self._log_file.stat().st_size
        self._started = time.monotonic()
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            # Settings may have secrets, which the process list would show as arguments.
            env={**os.environ, GIVEN: packed_settings(self._properties)},
            # Ctrl-C must reach only the engine, which lets the child finish.
            start_new_session=True,
        )
        log.info("spark is starting, that takes some seconds; its log is %s", self._log_file)
        self._give()

    def give(self, data: bytes) -> None:
        """Send ``data`` to the child, and to each child after it.

        The data (`waltap_spark.apply.snapshot_splits.packed`) goes to the child's standard input.
        """
        self._given = data
        self._give()

    def _give(self) -> None:
        if self._given and self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):  # the child died; `restart_dead` restarts it
                self._child.stdin.write(self._given)
                self._child.stdin.flush()

    def restart_dead(self) -> None:
        """Restart the child after it died.

        Raises: ApplierFailed, JvmEnded, ChunkSourceUnreachable when a restart would not help.
        """
        child = self._child
        if child is None:
            return
        now = time.monotonic()
        if child.poll() is None:
            if now >= self._next_poll:
                self._next_poll = now + POLL_S
                self._report()
            return
        self._forget(child)
        state = self._state()
        reached = 0 if state is None else state.number
        if reached > self._reached or now - self._started >= CALM_S:
            # The child made progress, so the next one will, too.
            self._reached, self._deaths = reached, 0
        self._deaths += 1
        if child.returncode == UNREACHABLE:
            code = f"{ChunkSourceUnreachable.code} "
            last_words = self._last_words(code).partition(code)[2]
            last_words = last_words.removesuffix(f". {ChunkSourceUnreachable.remedy}")
            raise ChunkSourceUnreachable(
                last_words or f"tasks could not read the snapshot; see {self._log_file}"
            )
        if child.returncode == REFUSED or self._deaths > RESTARTS:
            raise self._failure(child.returncode)
        why = "ran out of memory" if self._lacked_memory() else "died"
        log.warning("the spark process %s (status %s); starting it again", why, child.returncode)
        self.start()

    def _state(self) -> OutputState | None:
        """Return the last commit; the writer reports one that is unreadable."""
        try:
            return self._properties.output().state()
        except SinkError:
            return None

    def _report(self) -> None:
        """Log new reports of the last commit once each."""
        state = self._state()
        for name, each in state.tables.items() if state is not None else ():
            texts = [f"{name} needs a new snapshot: {reason}" for reason in each.stale]
            texts += (*each.widened, *each.split_nulls)
            if each.failed:
                texts.append(f"{name} is suspended, other tables continue: {each.failed}")
            for text in texts:
                if text not in self._reported:
                    self._reported.add(text)
                    log.warning("%s", text)

    def finish(self) -> None:
        """Let the child finish the change log, and wait.

        It may be called twice. A child that needs longer than ``drain.timeout.ms``, or than an
        operator leaves a stop, continues alone and ends by itself. Raises: ApplierFailed or
        JvmEnded, unless the run already ends with another error. Suspended tables are no error of
        the run, which reports them all the time. Neither is a process that still uses the tables,
        such as the applier of a killed engine: the change log has the changes that it leaves.
        """
        child = self._child
        try:
            if child is not None:
                self._forget(child)
                self._wait(child)
                self._report()
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    def leave(self) -> None:
        """Let the child finish without waiting for it."""
        if self._child is not None:
            log.info("spark applies what the change log holds, and ends by itself")
            self._forget(self._child)
        self.finish()

    def abandon(self) -> None:
        """Terminate a child that has no work."""
        child = self._child
        if child is not None:
            self._forget(child)
            child.terminate()
            child.wait()
        self.finish()

    def _forget(self, child: "subprocess.Popen[bytes]") -> None:
        """Close the child's standard input, which makes it end."""
        self._child = None
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()

    def _wait(self, child: "subprocess.Popen[bytes]") -> None:
        limit = time.monotonic() + self._properties.drain_ms / 1000
        reported = time.monotonic()
        while True:
            now = time.monotonic()
            remaining = min(limit - now, self._time_left() - SPARE_S)
            try:
                code = child.wait(timeout=max(0.0, min(WAIT_S, remaining)))
                break
            except subprocess.TimeoutExpired:
                if remaining <= 0:
                    log.warning(
                        "spark is still applying changes and ends by itself; see %s", self._log_file
                    )
                    return
                if now - reported >= REPORT_EVERY_S:
                    log.info("waiting until spark has applied everything")
                    reported = now
        if code != 0:
            failure = self._failure(code)
            if sys.exc_info()[0] is None and code not in {SUSPENDED, LOCKED}:
                raise failure
            if code == LOCKED:
                log.warning(
                    "the next start applies the rest of the change log: %s", failure.problem
                )
            else:
                log.error("%s", failure)

    def _failure(self, code: int) -> SinkError:
        if self._lacked_memory():
            memory = self._properties.settings.get("spark.driver.memory", "1g")
            text = "the Spark process ran out of memory"
            return JvmEnded(text, log=self._log_file, memory=memory)
        last_words = self._last_words()
        return ApplierFailed(
            f"the Spark process ended with status {code}: {last_words}",
            log=self._log_file,
            changelog=self._changelog,
            output=self._output,
        )

    def _lacked_memory(self) -> bool:
        return NO_MEMORY.encode() in self._end_of_log(LOOKED_AT)

    def _end_of_log(self, size: int) -> bytes:
        """Return at most ``size`` bytes of the last child's log."""
        try:
            with self._log_file.open("rb") as file:
                end = file.seek(0, 2)
                file.seek(max(self._log_began, end - size))
                return file.read()
        except OSError:
            return b""

    def _last_words(self, about: str = "") -> str:
        """Return the last error line of the child's log."""
        lines = self._end_of_log(8192).decode("utf-8", "replace").splitlines()
        errors = [line for line in lines if " ERROR " in line or "Error" in line]
        fitting = [line for line in errors if about in line]
        return (fitting or errors or lines or ["no word"])[-1].strip()
