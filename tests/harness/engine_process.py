"""`waltap run` of one profile as a process that is killed, and started again in the same folder."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import command
from tests.harness.command import Command
from tests.harness.meanwhile import WAIT_S
from tests.harness.pipeline import profile_text, until


class EngineProcess:
    """The lives of one pipeline; what it says is in ``engine.log``."""

    def __init__(self, folder: Path, source: dict[str, Any], sink: dict[str, Any]) -> None:
        self.folder = folder
        self._process: Command | None = None
        self._log, self._ready = folder / "engine.log", folder / "ready"
        text = profile_text("p", {"type": "postgres", **source}, sink)
        (folder / "p.toml").write_text(text)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        words = ("run", "p.toml", "--ready-file", "ready")
        with self._log.open("ab") as out:
            self._process = command.start(*words, cwd=self.folder, out=out, errors=out)

    def lives(self) -> bool:
        """Return True; an engine that ended is an error."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        return True

    def ready(self) -> bool:
        return self.lives() and self._ready.exists()

    def until(self, condition: Callable[[], object], what: str, within: float = WAIT_S) -> None:
        """Wait for ``condition``, as long as the engine lives."""
        until(lambda: self.lives() and condition(), what, within)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, if it was started, and wait for that."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(WAIT_S)
