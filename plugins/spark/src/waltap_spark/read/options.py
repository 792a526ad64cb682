"""Options of ``format("waltap")``, read and checked once."""

import datetime as dt
import fnmatch
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, ParamSpec, TypeVar, cast

from waltap.base.files.properties import StorageProperties
from waltap.errors import WaltapError
from waltap_sinks.changelog import ChangeLog, FileStore, LogPosition, Manifest
from waltap_sinks.changelog.errors import ChangeLogExpired
from waltap_sinks.changelog.manifest import written_in
from waltap_spark.errors import SourceOption
from waltap_spark.state.version_maps import parse_position

# Options of a log, which a profile does not allow.
OF_A_LOG = ("path", "reader")

# Options that select a range of a log. Profiles use the snapshot mode and the slot instead.
OF_A_RANGE = ("startingPosition", "startingTime", "endingPosition", "endingTime", "skipReplaced")

KNOWN = (
    "path",
    "profile",
    "changelogLocation",
    "table",
    "tables",
    *OF_A_RANGE,
    "maxRowsPerBatch",
    "maxBytesPerBatch",
    "rowsPerTask",
    "newColumns",
    "failOnDataLoss",
    "reader",
)

# Options of a query that ends. A stream would lose the rows that they leave out.
OF_A_BATCH = frozenset(("endingPosition", "endingTime", "skipReplaced"))


# Latest writing time of a manifest after its bucket's start, by a server's clock: a bucket has ten
# minutes, and clocks differ.
WRITTEN_WITHIN: Final = dt.timedelta(minutes=20)


@dataclass(frozen=True, slots=True)
class LogBoundary:
    """A word, position, LSN or time in the log.

    ``words`` is earliest or latest, ``time`` is in µs since 1970.
    """

    words: Literal["earliest", "latest", ""] = ""
    log_position: LogPosition | None = None
    lsn: int | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a reader.

    ``patterns`` selects tables if ``table`` is empty. ``profiles`` are files that replace ``path``;
    their engines write to ``changelog_location``.
    """

    path: str
    table: str = ""
    patterns: tuple[str, ...] = ()
    start: LogBoundary
    end: LogBoundary
    most_rows: int | None = None
    most_bytes: int | None = None
    rows_per_task: int = 250_000
    ignores_new: bool = False
    ignores_loss: bool = False
    skip_replaced: bool = False
    reader: str = ""
    profiles: tuple[str, ...] = ()
    changelog_location: str = ""
    # Settings of the store of ``path``; None: from the environment.
    storage: StorageProperties | None = None
    # The profile that writes the log at ``path``, if the query reads profiles.
    source: str = ""
    # Options of `OF_A_RANGE` that were given.
    ranged: tuple[str, ...] = ()

    def wants(self, name: str) -> bool:
        """Return whether the query reads the table ``schema.table``."""
        if self.table:
            return name == self.table
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)

    def log(self) -> ChangeLog:
        """Return the log at ``path`` or below it. Raises: SourceOption."""
        for location in (self.path, f"{self.path.rstrip('/')}/changelog"):
            found = ChangeLog(FileStore(location, self.storage))
            if found.exists():
                return found
        raise SourceOption(f"{self.path} is not a change log", option="path")


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a reader. Raises: SourceOption."""
    # Spark ignores the case of option names.
    lower = {name.lower(): value for name, value in given.items()}
    known = {name.lower() for name in KNOWN}
    for name in lower:
        if name not in known:
            raise SourceOption(
                f"option {name} is not known; there are {', '.join(KNOWN)}", option=name
            )
    path = lower.get("path", "")
    profiles = tuple(each.strip() for each in lower.get("profile", "").split(",") if each.strip())
    if profiles:
        unfit = [name for name in OF_A_LOG if name.lower() in lower]
        if unfit:
            raise SourceOption(f"{unfit[0]} is of a change log, not of a profile", option=unfit[0])
    elif "changeloglocation" in lower:
        raise SourceOption(
            "changelogLocation is where the engine of a profile writes", option="profile"
        )
    elif not path.strip():
        raise SourceOption("no path of a change log is given, and no profile", option="path")
    table, tables = lower.get("table", "").strip(), lower.get("tables", "").strip()
    if bool(table) == bool(tables):
        raise SourceOption("give either table (schema.table) or tables (patterns)", option="table")
    if table and "." not in table:
        raise SourceOption(f"{table} has no schema before it: schema.table", option="table")
    return SourceOptions(
        path=path,
        table=table,
        patterns=tuple(each.strip() for each in tables.split(",") if each.strip()),
        start=_bound(lower, "starting", "earliest"),
        end=_bound(lower, "ending", "latest"),
        most_rows=_number(lower, "maxRowsPerBatch"),
        most_bytes=_number(lower, "maxBytesPerBatch"),
        rows_per_task=_number(lower, "rowsPerTask") or 250_000,
        ignores_new=_one_of(lower, "newColumns", "fail", "ignore") == "ignore",
        ignores_loss=_one_of(lower, "failOnDataLoss", "true", "false") == "false",
        skip_replaced=_one_of(lower, "skipReplaced", "false", "true") == "true",
        reader=lower.get("reader", "").strip(),
        profiles=profiles,
        changelog_location=lower.get("changeloglocation", "").strip(),
        ranged=tuple(name for name in OF_A_RANGE if name.lower() in lower),
    )


def _one_of(given: Mapping[str, str], name: str, *allowed: str) -> str:
    value = given.get(name.lower(), allowed[0]).lower()
    if value not in allowed:
        raise SourceOption(f"{name} is {value}, not {' or '.join(allowed)}", option=name)
    return value


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise SourceOption(f"{name} is {text}, not a number above 0", option=name)
    return int(text)


def _bound(given: Mapping[str, str], prefix: str, default: str) -> LogBoundary:
    position, time = given.get(f"{prefix}position"), given.get(f"{prefix}time")
    if position is not None and time is not None:
        raise SourceOption(
            f"give {prefix}Position or {prefix}Time, not both", option=f"{prefix}Time"
        )
    if time is not None:
        return LogBoundary(time=_moment(time, f"{prefix}Time"))
    text = (position or default).strip()
    if text.lower() in ("earliest", "latest"):
        return LogBoundary(cast(Literal["earliest", "latest"], text.lower()))
    try:
        found = parse_position(text)
    except ValueError as cause:
        what = "earliest, latest, an LSN (0/16B3748) or a position of `waltap changelog list`"
        name = f"{prefix}Position"
        raise SourceOption(f"{name} is {text}, not {what}", option=name) from cause
    if isinstance(found, LogPosition):
        return LogBoundary(log_position=found)
    return LogBoundary(lsn=found)


def _moment(text: str, option: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError as cause:
        what = f"{option} is {text}, not a time such as 2026-11-20T10:00:00+00:00"
        raise SourceOption(what, option=option) from cause
    # The change log has times in UTC, whatever the zone of this machine.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return _micros(moment)


def _micros(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def start_log_position(log: ChangeLog, bound: LogBoundary, last: Manifest | None) -> LogPosition:
    """Return the position before the first row that ``bound`` wants.

    Raises: ChangeLogExpired; SourceOption if it is a position between two of the log's.
    """
    if last is None or bound.words == "earliest":
        return log.begin
    if bound.words == "latest":
        return last.log_position
    if bound.log_position is not None:
        try:
            next(log.manifests(bound.log_position), None)
        except ChangeLogExpired:
            if bound.log_position <= log.begin:
                raise
            text = f"the log has no position {bound.log_position}, only ones before and after it"
            raise SourceOption(text, option="startingPosition") from None
        return bound.log_position
    before = log.begin
    for step in log.manifests(before, last.log_position):
        if bound.time is not None:
            reached = not _lies_before(step, bound.time)
        else:  # a snapshot's rows have the end position of the manifest before, or a later one
            assert bound.lsn is not None
            rows = (step.snapshot and step.snapshot.lsn) or 0
            ends = max(step.log_position.end_lsn, rows)
            reached = step.log_position.epoch == last.log_position.epoch and ends >= bound.lsn
        if reached:
            return before
        before = step.log_position
    return before


def _lies_before(step: Manifest, time: int) -> bool:
    """Return whether all rows of ``step`` are older than ``time``.

    Snapshot rows have the time of reading, which the manifest lacks: it is before the manifest was
    written.
    """
    if any("r" in entry.operations for entry in step.tables):
        written = dt.datetime.strptime(f"{written_in(step.bucket)}0+0000", "%Y%m%dT%H%M%z")
        if _micros(written + WRITTEN_WITHIN) >= time:
            return False
    return step.last_commit_ts is None or step.last_commit_ts < time


def end_log_position(log: ChangeLog, bound: LogBoundary) -> LogPosition:
    """Return the position after the last row that ``bound`` wants."""
    last = log.last()
    if last is None or bound.words == "earliest":
        return log.begin
    if bound.log_position is not None:
        return min(bound.log_position, last.log_position)
    if bound.lsn is not None:
        for step in log.manifests(log.begin):
            if (
                step.log_position.epoch == last.log_position.epoch
                and step.log_position.end_lsn >= bound.lsn
            ):
                return step.log_position
    return last.log_position


P = ParamSpec("P")
R = TypeVar("R")

# Variables that Spark gives its Python workers.
_WORKER: Final = ("PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH")


def shows_text(method: Callable[P, R]) -> Callable[P, R]:
    """Let Spark show an error of ``method`` by its text alone.

    Otherwise the stack of the worker comes first, and code and remedy at its end. A worker that
    planned needlessly ends, so the setting concerns no other error.
    """

    @functools.wraps(method)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return method(*arguments, **named)
        except WaltapError:
            if any(name in os.environ for name in _WORKER):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return called
