"""The engine of the demo: ``waltap run`` as a process of its own, with a profile that is written."""

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
    """``waltap run`` on a profile; its log goes to a file."""

    def __init__(self, profile: Path, folder: Path) -> None:
        self.profile = profile
        self.log_file = folder / "engine.log"
        self.ready_file = folder / "ready"
        self.spark_log = folder / "state" / "flights" / "spark.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return its process id. It must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the engine; it runs until `stop` or `kill`."""
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
            start_new_session=True,
        )

    def wait_until(
        self, condition: Callable[[], bool], seconds: float, what: str, tick: Callable[[], None]
    ) -> None:
        """Wait for ``condition``; ``tick`` is called now and then. Raises: DemoStuck."""
        assert self._process is not None
        limit = time.monotonic() + seconds
        while not condition():
            code = self._process.poll()
            if code is not None:
                raise self._stuck(f"the engine ended with status {code}: {self.last_words()}")
            if time.monotonic() > limit:
                raise self._stuck(f"{what} took more than {seconds:.0f} s")
            tick()
            time.sleep(LOOK_S)

    def stop(self) -> int:
        """Ask for a clean end and wait for it; return the exit code."""
        return self._end(signal.SIGTERM, END_S)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL, END_S)

    def last_words(self) -> str:
        """Return the end of its log."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return " / ".join(line.strip() for line in text.splitlines()[-6:] if line.strip())

    def leave(self) -> None:
        """Let it run on without us."""
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
