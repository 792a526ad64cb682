"""The destination of a command's log, and its view on a terminal."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltap.base.environment import log_form, log_level
from waltap.base.redaction import redacted
from waltap.base.text import printable, text_of
from waltap.cli.terminal import notices, notices_are_piped
from waltap.errors import ConfigurationError
from waltap.services.telemetry.lifecycle import LifeCycleLog

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.pipeline import Engine
    from waltap.plugins.host import Host


# Write structured logs as JSON lines or as short text.
#
# A log call has a constant lower-case message and puts its variable parts into ``extra``. Names that
# are not in `FIELDS` are dropped. A log never has a row value, a key or a secret.


FIELDS = (
    "pipeline",
    "slot",
    "publication",
    "table",
    "lsn",
    "xid",
    "batch_rows",
    "batch_bytes",
    "rows",
    "tables",
    "events",
    "events_per_second",
    "changes",
    "snapshot_rows",
    "transactions",
    "seconds",
    "lag_bytes",
    "duration_ms",
    "error_code",
    "hook",
    "plugin",
    "property",
)
"""Names that ``extra`` may have; units are in the name."""


class LineHandler(logging.Handler):
    """Format records and pass the lines to ``write``.

    ``write`` can be a console that also shows progress bars. ``labels`` are the labels of the
    profile; JSON lines have them.
    """

    def __init__(
        self, write: Callable[[str], object], form: Callable[[logging.LogRecord], str]
    ) -> None:
        super().__init__()
        self._write, self._form = write, form
        self.labels: dict[str, str] = {}

    def redirect(
        self, write: Callable[[str], object], form: Callable[[logging.LogRecord], str]
    ) -> None:
        """Send later records to another writer in another form."""
        with self.lock or nullcontext():
            self._write, self._form = write, form

    def emit(self, record: logging.LogRecord) -> None:
        record.labels = self.labels
        # the whole line is cleaned, whatever put a secret into it; text from outside must neither
        # end the line nor control a terminal
        try:
            self._write(printable(redacted(self._form(record))))
        except Exception:  # noqa: BLE001 - logging never stops a pipeline
            self.handleError(record)


def as_json(record: logging.LogRecord) -> str:
    """Return a record as one JSON object.

    Members: ts, level, logger, message, fields, labels.
    """
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    document: dict[str, object] = {
        "ts": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        **_fields(record),
    }
    if labels := vars(record).get("labels"):
        document["labels"] = labels
    if record.exc_info and record.exc_info[0] is not None:
        document["exception"] = f"{record.exc_info[0].__name__}: {text_of(record.exc_info[1])}"
    return json.dumps(document, default=str, ensure_ascii=False)


def as_text(record: logging.LogRecord) -> str:
    """Return a record as one line for people."""
    fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
    text = f"{record.levelname.lower()}: {record.getMessage()}{fields}"
    if record.exc_info and record.exc_info[0] is not None:
        text += f" ({record.exc_info[0].__name__}: {text_of(record.exc_info[1])})"
    return text


FORMS: Mapping[str, Callable[[logging.LogRecord], str]] = {"json": as_json, "text": as_text}


def set_level(level: str) -> None:
    """Set the lowest level (upper case); an unknown level is INFO."""
    logging.getLogger().setLevel(logging.getLevelNamesMapping().get(level, logging.INFO))


def configure(write: Callable[[str], object], *, form: str, level: str) -> LineHandler:
    """Send the logs of waltap and its plugins to ``write``.

    ``form`` is json or text. Returns the handler, which the caller may remove from the root logger.
    """
    handler = LineHandler(write, FORMS[form])
    logging.getLogger().addHandler(handler)
    set_level(level)
    # py4j logs every call of the JVM otherwise
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # httpx logs addresses, and the address of a webhook is a secret
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return handler


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given = vars(record)
    return {name: given[name] for name in FIELDS if name in given}


MODE = 0o640


class LogFile:
    """Appends lines, each with one write: processes may share the file.

    Before each line it checks that the open file still has the name, and opens it again if it was
    moved or deleted: logrotate needs no signal, and no line is lost or copied. If a line cannot be
    written, it goes to standard error, and the reason once.
    """

    def __init__(self, path: Path) -> None:
        """Raises: ConfigurationError where it cannot be opened."""
        self.path = path
        self._reported = ""
        try:
            self._file = _opened(path)
        except OSError as error:
            raise ConfigurationError.of(
                "waltap.log.file",
                f"cannot be written: {error.strerror}",
                value=str(path),
                origin="the log file",
            ) from error

    def write(self, line: str) -> None:
        try:
            if not self._named():
                file = _opened(self.path)
                self.close()
                self._file = file
            unwritten = f"{line}\n".encode("utf-8", "backslashreplace")
            while unwritten:
                unwritten = unwritten[os.write(self._file, unwritten) :]
            self._reported = ""
        except OSError as error:
            if self._reported != str(error.strerror):
                self._reported = str(error.strerror)
                sys.stderr.write(f"waltap: {self.path} cannot be written: {error.strerror}\n")
            sys.stderr.write(f"{line}\n")

    def _named(self) -> bool:
        try:
            there = self.path.stat()
        except OSError:
            return False
        mine = os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)


class LogOutput:
    """Logs to standard error, or as the profile says, and shows progress.

    The profile of an engine applies once the engine is known; a terminal shows bars.
    """

    def __init__(self, host: "Host", *, quiet: bool) -> None:
        self._host = host
        self._console = None if notices_are_piped() else notices()
        self._terminal = self._console is not None and self._console.is_terminal
        self._form = log_form(terminal=self._terminal)
        self._calm = quiet or (self._form == "text" and self._terminal)
        self._handler = configure(self._to_screen, form=self._form, level=self._level(None))
        self._file: LogFile | None = None
        self._display: Any = None

    def __call__(self, engine: "Engine") -> None:
        """Show the life of ``engine``. Raises: ConfigurationError, of its log file."""
        profile = engine.profile
        self._handler.labels = profile.labels
        self.apply_profile(profile)
        if not self._calm or self._file is not None:
            self._host.register(LifeCycleLog(engine.status), "life-cycle log")
        shown = self._console is not None and self._form == "text" and self._terminal
        if shown and not _writes_to_stdout(profile):
            from waltap.services.telemetry.progress import ProgressDisplay

            assert self._console is not None
            self._display = ProgressDisplay(self._console, engine.status)
            self._host.register(self._display, "progress")
            self._display.start()

    def apply_profile(self, profile: "Profile") -> None:
        """Apply a profile's log settings, all or none. Raises: ConfigurationError."""
        self.log_to(profile.engine.log_file)
        set_level(self._level(profile.engine.log_level))

    def log_to(self, path: Path | None) -> None:
        """Append later log lines to a file; None: to standard error.

        Raises: ConfigurationError.
        """
        before = self._file
        if path == (None if before is None else before.path):
            return
        if path is None:
            self._file = None
            self._handler.redirect(self._to_screen, FORMS[self._form])
        else:
            self._file = LogFile(path)
            self._handler.redirect(self._file.write, FORMS[log_form(terminal=False)])
        if before is not None:
            before.close()

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()
        logging.getLogger().removeHandler(self._handler)
        if self._file is not None:
            self._file.close()

    def _level(self, wanted: str | None) -> str:
        calm = self._calm and (wanted is None)
        return (wanted or "").upper() or log_level(default="WARNING" if calm else "INFO")

    def _to_screen(self, line: str) -> None:
        if self._console is None:
            sys.stderr.write(f"{line}\n")
        else:
            self._console.print(line, markup=False, emoji=False, soft_wrap=True)


@contextmanager
def telemetry(host: "Host", *, quiet: bool = False) -> Iterator[LogOutput]:
    """Log to standard error, warnings only when ``quiet``, while the block lasts.

    What is yielded has an engine's life logged too, where its profile says.
    """
    output = LogOutput(host, quiet=quiet)
    try:
        yield output
    finally:
        output.close()


def _writes_to_stdout(profile: "Profile") -> bool:
    """Return whether the sink's lines would mix with the bars.

    The path ``-`` is standard output.
    """
    sink = profile.sink
    values = vars(sink.properties).values() if sink.properties is not None else ()
    return sink.spec.name == "terminal" or "-" in values
