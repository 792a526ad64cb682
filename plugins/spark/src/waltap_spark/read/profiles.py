"""Read profiles: an engine for each captures into a private log.

A private log is an ordinary change log. An offset holds the offset of each private log by the
profile's name, so Spark can read a batch again without the engines. An engine starts once Spark has
committed all of its private log, since the engine confirms that position to the server. A batch
query commits nothing: its engines stop at the servers' present positions, the slots follow the
private logs, and the query reads the private logs.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from waltap_sinks.changelog import NOTHING, LogPosition
from waltap_spark.errors import OffsetOfAnother, SourceOption, TableNotLogged
from waltap_spark.read.catalogue import (
    OWN,
    SOURCE,
    arrow_types,
    logged_tables,
    query_struct,
    table_types,
)
from waltap_spark.read.hosted import HostedEngine
from waltap_spark.read.options import SourceOptions, shows_text
from waltap_spark.read.stream import (
    LIMITED,
    PROGRESS_S,
    ChangeLogStream,
    SupportsTriggerAvailableNow,
    read_limit,
    share_of,
)
from waltap_spark.read.tasks import NOWHERE, TaskPlanner, TaskReading, log_position_of, offset_of

OFFSET_VERSION: Final = 2


def hosts_of(options: SourceOptions) -> list[HostedEngine]:
    """Return the engines of the profiles, before `begin`.

    Raises: ConfigurationError, SourceOption.
    """
    found = [HostedEngine(file, options.changelog_location) for file in options.profiles]
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise SourceOption(f"two profiles have one name: {', '.join(names)}", option="profile")
    return found


def private_log_positions(options: SourceOptions) -> dict[str, LogPosition]:
    """Return each private log's last position by profile name.

    Raises: WaltapError.
    """
    return {each.name: each.log.end for each in hosts_of(options)}


def profiles_struct(options: SourceOptions) -> StructType:
    """Return the query's schema from private logs, else from servers.

    A new column reaches one server first, so a column that only some profiles have is null in rows
    of the others. Raises: WaltapError.
    """
    found: dict[str, dict[str, str]] = {}
    for host in hosts_of(options):
        for table, columns in _tables(host, options).items():
            known = found.setdefault(table, {})
            # Spark has one type per column; a difference would otherwise fail in the middle of a
            # batch.
            unlike = [name for name, kind in columns.items() if known.get(name, kind) != kind]
            if unlike:
                what = f"{table} has other types in {host.name} than in the profiles before it"
                raise SourceOption(f"{what}: {', '.join(unlike)}", option="profile")
            known.update(columns)
    if not found:
        wanted = options.table or ", ".join(options.patterns)
        raise TableNotLogged(f"no profile captures {wanted}", known="see waltap plan")
    return query_struct(options, found, {**OWN, **SOURCE})


def _tables(host: HostedEngine, options: SourceOptions) -> dict[str, dict[str, str]]:
    log, found = host.log, {}
    if log.exists():
        logged = logged_tables(log, options, required=False)
        found = {name: table_types(log, entry) for name, entry in logged.items()}
        if options.table in found:
            return found
    return {
        name: arrow_types(schema) for name, schema in host.catalogue(options.wants).items()
    } | found


class ProfilesStream(TaskReading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Streams changes that engines capture; batches end between transactions."""

    def __init__(
        self,
        options: SourceOptions,
        struct: StructType,
        known: Mapping[str, LogPosition] | None = None,
    ) -> None:
        """``known``: each private log's position when ``struct`` was made.

        None if the reader made ``struct``.
        """
        if not LIMITED:
            raise SourceOption("a profile is streamed by pyspark 4.2 or later", option="path")
        if options.ranged:
            what = f"{options.ranged[0]} is of a change log or a batch, not of a stream of profiles"
            raise SourceOption(what, option=options.ranged[0])
        self._options, self._struct = options, struct
        self._private_logs = [
            _ProfileLog(
                host, options, struct, None if known is None else known.get(host.name, NOTHING)
            )
            for host in hosts_of(options)
        ]
        self._ends = False

    @shows_text
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before all rows of the private logs.

        The snapshot mode decides which rows a profile reads first. If an earlier query has released
        segments, the offset is before the oldest remaining one.
        """
        return self._offset({each.name: each.initial() for each in self._private_logs})

    @staticmethod
    def _offset(parts: dict[str, Any]) -> dict[str, Any]:
        return {"version": OFFSET_VERSION, "profiles": dict(sorted(parts.items()))}

    def _parts(self, offset: dict[str, Any]) -> dict[str, Any]:
        """Return the offset of each profile. Raises: OffsetOfAnother."""
        found = offset.get("profiles")
        if found is None:
            raise OffsetOfAnother("the checkpoint is one of a change log, not of profiles")
        gone = sorted(set(found).difference(each.name for each in self._private_logs))
        if gone:
            raise OffsetOfAnother(f"the checkpoint is one of the profiles {', '.join(gone)}, too")
        return {each.name: found.get(each.name) or each.initial() for each in self._private_logs}

    @shows_text
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch.

        Spark calls this after it has committed ``start``, so everything up to ``start`` is
        released. Raises: WaltapError, the failure of an engine.
        """
        parts = self._parts(start)
        share = share_of(limit, len(self._private_logs))
        while True:
            for private_log in self._private_logs:
                private_log.host.check()
            ended = all(private_log.host.ended for private_log in self._private_logs)
            found = {}
            for private_log in self._private_logs:
                begin = parts[private_log.name]
                found[private_log.name] = end = private_log.latest(begin, share, ended=ended)
                # An engine confirms its private log to the server: Spark must have committed all of
                # it.
                if end == begin and not private_log.host.begun:
                    private_log.host.begin(ends=self._ends)
            # With AvailableNow an unchanged offset ends the query: wait for rows, or for all
            # engines.
            if not self._ends or ended or found != parts:
                return self._offset(found)
            self._private_logs[0].host.wait()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return read_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the engines stop at the servers' present positions."""
        self._ends = True

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the ends of the private logs and the lags.

        The lags are of the last batch to the private logs, and of the engines to the servers
        (``wal_behind_bytes``).
        """
        reported = {}
        for private_log in self._private_logs:
            stream, behind = private_log.stream, private_log.host.behind()
            known = None if stream is None else stream.reportLatestOffset()
            reported[private_log.name] = {**(known or NOWHERE), "wal_behind_bytes": behind}
        return {"version": OFFSET_VERSION, "profiles": reported}

    def commit(self, end: dict[str, Any]) -> None:
        """Release slots and private logs up to ``end``."""
        for name, part in self._parts(end).items():
            next(each for each in self._private_logs if each.name == name).release(part)

    def stop(self) -> None:
        for private_log in self._private_logs:
            private_log.host.stop()

    @shows_text
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch, also when Spark repeats it."""
        first, last = self._parts(start), self._parts(end)
        return [
            task
            for private_log in self._private_logs
            for task in private_log.partitions(first[private_log.name], last[private_log.name])
        ]


class ProfilesBatch(TaskReading, DataSourceReader):  # type: ignore[misc]
    """Captures up to the servers' positions, then reads private logs."""

    def __init__(
        self,
        options: SourceOptions,
        struct: StructType,
        known: Mapping[str, LogPosition] | None = None,
    ) -> None:
        """``known``: as in `ProfilesStream`. Raises: WaltapError."""
        places = [each for each in (options.start, options.end) if each.lsn or each.log_position]
        if places and len(options.profiles) > 1:
            what = "a position is of one profile: give a time, or read the profiles one by one"
            raise SourceOption(what, option=options.ranged[0])
        self._options, self._struct = options, struct
        self._known = private_log_positions(options) if known is None else known

    @shows_text
    def partitions(self) -> list[InputPartition]:
        """Return the tasks when the engines have ended.

        Raises: WaltapError, the failure of an engine.
        """
        hosts = hosts_of(self._options)
        try:
            for host in hosts:
                host.begin(ends=True, waits=False)
            while not all(host.ended for host in hosts):
                for host in hosts:
                    host.check()
                hosts[0].wait()
        finally:
            for host in hosts:
                host.stop()
        own, tasks = _without_source(self._struct), list[InputPartition]()
        for host in hosts:
            if (log := host.log).end != NOTHING:
                options = _of_private_log(self._options, host)
                known = self._known.get(host.name, NOTHING)
                tasks += TaskPlanner(log, options, own, known).of_range(log)
        return tasks


def _of_private_log(options: SourceOptions, host: HostedEngine) -> SourceOptions:
    return replace(
        options, path=host.location, storage=host.storage, source=host.name, profiles=(), reader=""
    )


class _ProfileLog:
    """The private log of one profile, and the stream over it."""

    def __init__(
        self,
        host: HostedEngine,
        options: SourceOptions,
        struct: StructType,
        known: LogPosition | None,
    ) -> None:
        self.host, self.name = host, host.name
        self.stream: ChangeLogStream | None = None
        self._options = _of_private_log(options, host)
        self._struct = struct
        self._next_progress = time.monotonic() + PROGRESS_S
        self._known = host.log.end if known is None else known

    def initial(self) -> dict[str, Any]:
        """Return the offset before the oldest segment of the private log."""
        log, log_position = self.host.log, self.host.log.begin
        return NOWHERE if log_position == NOTHING else offset_of(log.identity(), log_position)

    def _open(self, offset: dict[str, Any]) -> ChangeLogStream | None:
        """Return the stream; None while there is no private log.

        Raises: OffsetOfAnother if ``offset`` is of one.
        """
        if self.stream is None and self.host.log.exists():
            own = _without_source(self._struct)
            self.stream = ChangeLogStream(self._options, own, known=self._known)
        if self.stream is None and offset["log"]:
            where = self.host.location
            raise OffsetOfAnother(f"the private log of the checkpoint is not in {where}")
        return self.stream

    def latest(self, begin: dict[str, Any], limit: Any, *, ended: bool) -> dict[str, Any]:
        """Return a batch's end from ``begin``, and release before it.

        If only other tables changed, the slot may advance at once. The private log keeps those
        segments, since a checkpoint at ``begin`` resumes there; so the offset also moves past them,
        with an empty batch: once a minute, and immediately at the end of the query (``ended``).
        Raises: OffsetOfAnother if the checkpoint belongs to another private log.
        """
        stream, log_position = self._open(begin), log_position_of(begin)
        if stream is None:
            return begin
        end = stream.latestOffset(begin, limit)
        if log_position_of(end) != log_position:
            self.release(begin)
            return end
        passed = stream.passed(log_position)
        if passed > log_position and (
            ended or log_position == NOTHING or time.monotonic() >= self._next_progress
        ):
            self.release(begin)
            self._next_progress = time.monotonic() + PROGRESS_S
            return offset_of(self.host.log.identity(), passed)
        self.host.release(passed, spent=log_position)
        return begin

    def release(self, part: dict[str, Any]) -> None:
        """Release the private log up to ``part``, which Spark has committed."""
        self.host.release(log_position_of(part), spent=log_position_of(part))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if log_position_of(end) <= log_position_of(start):
            return []
        stream = self._open(end)
        return [] if stream is None else stream.partitions(start, end)


def _without_source(struct: StructType) -> StructType:
    return StructType([field for field in struct if field.name not in SOURCE])
