"""The engine under test: ``waltap run`` as a process, in a folder of its own, one life after the other."""

import contextlib
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.harness.command import run_program
from tests.harness.pipeline import profile_text
from tests.harness.proxy import Proxy
from tests.harness.servers.postgres import Database
from tests.hunt.judge import Life

FAULTY = '''"""Lets the Nth fsync of the sink's files fail, and loses what it should have made durable."""
import os

_real, _left, _whole = os.fsync, int(os.environ.get("HUNT_FSYNC_FAILS") or 0), {}


def _fsync(fd):
    global _left
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not path.startswith(os.environ["HUNT_SINK"]):
        return _real(fd)
    _left -= 1
    if os.path.exists("failing"):
        raise OSError(5, "Input/output error")
    if _left == 0 and os.path.isfile(path):
        os.truncate(path, _whole.get(path, int(os.environ["HUNT_SINK_SIZE"])))
        raise OSError(5, "Input/output error")
    _real(fd)
    _whole[path] = os.fstat(fd).st_size


os.fsync = _fsync
'''
"""A plugin, found by its entry point as any other."""

SPONTANEOUS = re.compile(r"WT-9000|Traceback \(most recent call last\)")


@functools.cache
def knows(python: str, name: str) -> bool:
    """Return whether the engine of an interpreter has a property, by its sources: an older one may not."""
    program = (
        "import pathlib, sys, waltap, waltap_postgres\n"
        "folders = [pathlib.Path(m.__file__).parent for m in (waltap, waltap_postgres)]\n"
        "sys.exit(not any(sys.argv[1] in p.read_text() for f in folders for p in f.rglob('*.py')))"
    )
    return subprocess.run([python, "-c", program, f'"{name}"'], check=False).returncode == 0


def patience(seconds: float) -> float:
    return seconds * float(os.environ.get("WALTAP_HUNT_PATIENCE", "4"))


def until(condition: Callable[[], object], within: float) -> bool:
    """Wait for ``condition``; False when the deadline passes."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@dataclass(slots=True)
class Ended:
    """How one life ended. ``asked``: none, TERM or KILL; ``harmed``: faults were put into it."""

    number: int
    asked: str
    code: int | None
    seconds: float
    harmed: bool
    said: str


@dataclass
class Engine:
    """The lives of one pipeline. ``python`` is the interpreter that has the engine to hunt in."""

    database: Database
    folder: Path
    python: str
    settings: dict[str, Any]
    sink: str
    sink_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        server = self.database.server
        self.proxy = Proxy(server.host, server.port)
        self.process: subprocess.Popen[bytes] | None = None
        self.lives: list[Life] = []
        self.ended: list[Ended] = []
        self.harmed = False
        self.peak_bytes = 0
        self.refusals: list[str] = []
        self._plugins()

    # --- where things are ------------------------------------------------------------------------

    @property
    def slot(self) -> str:
        return self.database.name

    @property
    def place(self) -> Path:
        """The sink's file or folder."""
        return self.folder / ("out.jsonl" if self.sink == "jsonl" else "log")

    @property
    def ready(self) -> bool:
        return (self.folder / "ready").exists()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def offset(self) -> dict[str, Any] | None:
        """Return the stored offset, None without any."""
        found = [*self.folder.rglob("offset.json")]
        with contextlib.suppress(ValueError, FileNotFoundError):
            if found:
                data = dict(json.loads(found[0].read_text()))
                return {**next(iter(data.get("partitions", {"": {}}).values())), **data}
        return None

    def stored(self) -> int | None:
        offset = self.offset()
        return (
            None if offset is None or offset.get("snapshot") else int(offset["position"]["end_lsn"])
        )

    def slot_state(self) -> tuple[int | None, bool] | None:
        """Return (confirmed_flush_lsn, active) of the slot, None when there is no slot."""
        query = (
            "SELECT (confirmed_flush_lsn - '0/0')::int8, active FROM pg_replication_slots"
            " WHERE slot_name = %s"
        )
        rows = self.database.execute(query, self.slot)
        return rows[0] if rows else None

    def files(self) -> list[Path]:
        """Return the files of JSON lines, those that were rotated away first."""
        rotated = sorted(self.folder.glob("rotated-*.jsonl"))
        return [*rotated, *([self.place] if self.place.is_file() else [])]

    def rotate(self) -> None:
        """Move the file of lines away, as log rotation does."""
        if self.place.is_file():
            self.place.rename(self.folder / f"rotated-{len(self.files()):03d}.jsonl")

    def lines(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.files())

    def log(self, number: int | None = None) -> str:
        """Return what one life wrote to stderr, or all of them."""
        numbers = range(len(self.lives)) if number is None else [number]
        paths = [self.folder / f"life-{n}.log" for n in numbers]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    # --- lives -----------------------------------------------------------------------------------

    def start(self, *, first: int, fsync_fails: int = 0, file_limit: int = 0) -> None:
        """Begin a life. ``first``: how many events there are. ``fsync_fails``: which fsync of the sink
        fails; ``file_limit``: bytes that no file of it may pass (a full disk)."""
        assert not self.running
        (self.folder / "ready").unlink(missing_ok=True)
        (self.folder / "failing").unlink(missing_ok=True)
        self.write_profile()
        number = len(self.lives)
        slot = self.slot_state()
        self.lives.append(Life(first, self.stored(), confirmed=slot[0] if slot else None))
        self.harmed = bool(fsync_fails or file_limit)
        size = self.place.stat().st_size if self.place.is_file() else 0
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "plugins"),
            "PYTHONFAULTHANDLER": "1",
            "WALTAP_LOG": "json",
            "HUNT_SINK": str(self.place.resolve()),
            "HUNT_SINK_SIZE": str(size),
            "HUNT_FSYNC_FAILS": str(fsync_fails),
        }

        def limit() -> None:
            if file_limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + file_limit, size + file_limit))

        with (self.folder / f"life-{number}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "waltap", "run", "p.toml", "--ready-file", "ready"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=environment,
                preexec_fn=limit if file_limit else None,
            )

    def command(self, *words: str) -> None:
        """Run ``waltap`` with the profile between two lives. One that fails is a finding."""
        command = self.python, "-m", "waltap", *words, "p.toml"
        done = run_program(*command, code=None, wait=patience(30), cwd=self.folder)
        if done.returncode:
            self.refusals.append(
                f"waltap {' '.join(words)}: {done.returncode} {done.stderr[-900:]}"
            )

    def fail_from_now_on(self) -> None:
        """Let every flush of the sink's files fail until this life ends."""
        self.harmed = True
        (self.folder / "failing").touch()

    def move(self, folder: Path) -> None:
        """Move profile, state and sink into another folder; between two lives."""
        assert not self.running
        self.folder.rename(folder)
        self.folder = folder

    def measure(self) -> None:
        """Note how much memory it has."""
        if self.running:
            assert self.process is not None
            with contextlib.suppress(psutil.Error):
                self.peak_bytes = max(
                    self.peak_bytes, psutil.Process(self.process.pid).memory_info().rss
                )

    def end(self, how: str, *, within: float = 0) -> Ended:
        """End a life: TERM, or KILL, or see how it ended by itself. A life that does not end on TERM
        within its deadline is made to show where its threads are, and killed."""
        assert self.process is not None
        self.measure()
        begun = time.monotonic()
        asked = how if self.running else "none"
        code: int | None = None
        if asked == "TERM":
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(within or patience(10))
            except subprocess.TimeoutExpired:
                self.dump()
        else:
            self.process.kill()
            code = self.process.wait(30)
        number = len(self.lives) - 1
        done = Ended(
            number, asked, code, time.monotonic() - begun, self.harmed, self.log(number)[-3000:]
        )
        self.ended.append(done)
        self.process = None
        until(lambda: not (self.slot_state() or (0, False))[1], patience(10))
        return done

    def dump(self) -> None:
        """Make it write its threads' stacks to its log, and end it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGABRT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    @contextlib.contextmanager
    def paused(self) -> Any:
        """SIGSTOP while the block lasts."""
        if not self.running:
            yield
            return
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self.proxy.close()

    # --- files -----------------------------------------------------------------------------------

    def write_profile(self) -> None:
        properties = {
            **self.database.properties(),
            "database.hostname": "127.0.0.1",
            "database.port": str(self.proxy.port),
            "slot.name": self.slot,
            "publication.name": self.slot,
            "topic.prefix": "hunt",
            **self.settings,
        }
        sink = {"type": self.sink, "path": self.place.name, **self.sink_settings}
        text = profile_text("p", {"type": "postgres", **properties}, sink)
        profile = self.folder / "p.toml"
        if not profile.exists() or profile.read_text() != text:  # a full disk has no room for it
            profile.write_text(text)

    def _plugins(self) -> None:
        folder = self.folder / "plugins"
        information = folder / "hunt_faults-1.0.dist-info"
        information.mkdir(parents=True, exist_ok=True)
        (folder / "hunt_faults.py").write_text(FAULTY)
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: hunt-faults\nVersion: 1.0\n"
        )
        (information / "entry_points.txt").write_text("[waltap]\nhunt_faults = hunt_faults\n")


def default_python() -> str:
    return sys.executable
