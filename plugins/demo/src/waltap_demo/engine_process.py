"""The demo's engine: ``waltap run`` as a separate process.

Its profile is a file that users can run by hand.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from waltap_demo.errors import DemoStuck

__all__ = ["EngineProcess", "write_profile"]

LOOK_S: Final = 0.05
# Limit of a clean end, in which Spark applies the rest of the change log.
END_S: Final = 180.0

PROFILE: Final = """\
# Written by waltap demo; the same file works by hand: waltap run {path}
name = "flights"

[source]
type = "postgres"
"database.hostname" = "{host}"
"database.port" = {port}
"database.user" = "{user}"
"database.dbname" = "{database}"
"table.include.list" = 'public\\..*'

[sink]
type = "spark"
path = "{output}"

[engine]
"waltap.state.dir" = "{state}"
"offset.flush.interval.ms" = 300
"""


def write_profile(
    path: Path, *, host: str, port: int, user: str, database: str, output: Path, state: Path
) -> None:
    """Write the profile of the demo's pipeline."""
    text = PROFILE.format(
        path=path, host=host, port=port, user=user, database=database, output=output, state=state
    )
    path.write_text(text)


class EngineProcess:
    """Run ``waltap run`` on a profile.

    Its log goes to a file.
    """

    def __init__(self, profile: Path, folder: Path) -> None:
        self.profile = profile
        self.log_file = folder / "engine.log"
        self.ready_file = folder / "ready"
        self.spark_log = folder / "state" / "flights" / "spark.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the started engine."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the engine, which runs until `stop` or `kill`."""
        self.ready_file.unlink(missing_ok=True)
        self._log = self.log_file.open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "waltap", "run", str(self.profile)),
                *("--ready-file", str(self.ready_file)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "WALTAP_LOG": "text"},
            # The engine has its own session, so that --keep-running can leave it running.
            start_new_session=True,
        )

    def wait_until(
        self, condition: Callable[[], bool], seconds: float, what: str, tick: Callable[[], None]
    ) -> None:
        """Wait for ``condition``, calling ``tick`` in between.

        Raises: DemoStuck.
        """
        assert self._process is not None
        limit = time.monotonic() + seconds
        while not condition():
            code = self._process.poll()
            # An engine that ended never meets the condition: fail with its log.
            if code is not None:
                raise self._stuck(f"the engine ended with status {code}: {self.last_words()}")
            if time.monotonic() > limit:
                raise self._stuck(f"{what} took more than {seconds:.0f} s")
            tick()
            time.sleep(LOOK_S)

    def stop(self) -> int:
        """End the engine cleanly and return its exit code."""
        return self._end(signal.SIGTERM, END_S)

    def kill(self) -> None:
        """End the engine immediately, as a crash would."""
        self._end(signal.SIGKILL, END_S)

    def last_words(self) -> str:
        """Return the last lines of the engine's log."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return " / ".join(line.strip() for line in text.splitlines()[-6:] if line.strip())

    def leave(self) -> None:
        """Leave the engine running and close its log."""
        if self._log is not None:
            self._log.close()

    def _end(self, number: signal.Signals, seconds: float) -> int:
        process = self._process
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as cause:
            process.kill()
            process.wait()
            raise self._stuck(f"the engine did not end within {seconds:.0f} s") from cause
        finally:
            self.leave()
        self._process = None
        return code

    def _stuck(self, what: str) -> DemoStuck:
        return DemoStuck(what, engine_log=self.log_file, spark_log=self.spark_log)
