"""Write Delta Lake tables with deltalake (delta-rs).

A commit has its position as three application transactions, one for each number of the position.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap.base.files.errors import PATHS, AccessRefused, kind_of
from waltap.base.files.location import refusal
from waltap.base.files.store import safe_name
from waltap.base.import_rules import pa
from waltap.base.plugin_errors import needing
from waltap.changes.transactions.position import Position
from waltap.errors import SinkError
from waltap_lake.errors import LakeFenced, LakeGone, LakeRefused, LakeTableUnfit, LakeUnavailable
from waltap_lake.lake import (
    GONE,
    KEEP_BUSY,
    KEEP_TRIES,
    RECREATED,
    LakeConnection,
    LakeOffset,
    LakeTable,
    LakeTableName,
    LakeTableVersion,
)
from waltap_lake.properties import DeltaLakeProperties

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


# Further words of stores that refuse the user. delta-rs gives no error codes.
REFUSALS: Final = ("accessdenied", "permission denied")
# Keys in the metadata of a commit: the pipeline's name, and the instance's number.
PIPELINE: Final = "waltap.pipeline"
INSTANCE: Final = "waltap.generation"

# Words of delta-rs about columns that do not fit.
SCHEMA: Final = ("cast", "schema", "invalid data type", "cannot merge")


class DeltaLake(LakeConnection):
    """Open tables below one folder, as ``path/space/name``."""

    times = False

    def __init__(self, properties: DeltaLakeProperties, pipeline: str) -> None:
        self.location, self.pipeline = properties.path, pipeline
        self._root = properties.path.rstrip("/")
        self.options = {
            name.removeprefix("storage."): value for name, value in properties.storage.items()
        } or None
        space, _, name = properties.position_table.rpartition(".")
        self._name = LakeTableName(space, name)
        self._positions: DeltaTable | None = None
        self.generation = 0

    def check(self) -> None:
        from_library()
        if "://" not in self._root:
            reason = refusal(Path(self._root), folder=True)
            if reason is not None:
                raise self.failure(reason) from reason
            return
        # `is_deltatable` would hold the interpreter's lock while the store does not answer: no probe
        # and no stop would get through.
        self.loaded(self._name)

    def open(self) -> LakeOffset | None:
        from_library()
        from deltalake import DeltaTable

        with self.failing():
            self._positions = DeltaTable.create(
                self.uri(self._name),
                pa.schema([("pipeline", pa.string())]),
                mode="ignore",
                storage_options=self.options,
                # Only the newest offset counts, and each flush adds a commit.
                configuration={"delta.logRetentionDuration": "interval 1 days"},
            )
        text = self._stored()
        return None if text is None else LakeOffset.decode(text)

    def _stored(self) -> str | None:
        assert self._positions is not None, "open comes first"
        return self._positions.metadata().configuration.get(f"waltap.{self.pipeline}")

    def keep(self, offset: LakeOffset) -> None:
        known, text, self.generation = self._stored(), offset.encode(), offset.generation
        assert self._positions is not None, "open comes first"
        for _ in range(KEEP_TRIES):
            if self._stored() == text:
                return
            with self.failing(self._name):
                # The commit would hold the interpreter's lock while the store does not answer.
                self._positions.update_incremental()
            if self._stored() not in (known, text):
                raise LakeFenced(f"{self._name} has another offset", pipeline=self.pipeline)
            # Another pipeline may store its offset at the same time, or an answer be lost.
            with suppress(LakeFenced), self.failing(self._name):
                self._positions.alter.set_table_properties(
                    {f"waltap.{self.pipeline}": text},
                    raise_if_not_exists=False,
                    commit_properties=self.commit([]),
                )
        raise LakeUnavailable(f"{self._name} {KEEP_BUSY}", location=self.location)

    def table(self, name: LakeTableName, schema: "pa.Schema") -> LakeTable:
        from deltalake import DeltaTable

        with self.failing(name):
            made = DeltaTable.create(
                self.uri(name), schema, mode="ignore", storage_options=self.options
            )  # fmt: skip
        return _DeltaTable(self, name, made)

    def existing(self, name: LakeTableName) -> LakeTable | None:
        found = self.loaded(name)
        return None if found is None else _DeltaTable(self, name, found)

    def loaded(self, name: LakeTableName) -> "DeltaTable | None":
        """Return a table as its log has it now, None if it is missing. Raises: SinkError."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self.failing(name):
            try:
                return DeltaTable(self.uri(name), storage_options=self.options)
            except TableNotFoundError:
                return None

    def takes(self, kind: "pa.DataType", other: "pa.DataType") -> bool:
        return alike(kind, other)

    def close(self) -> None:
        self._positions = None

    def uri(self, name: LakeTableName) -> str:
        return "/".join((self._root, *(safe_name(part) for part in name if part)))

    def commit(self, versions: list[tuple[str, int]]) -> "CommitProperties":
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            app_transactions=[Transaction(name, version) for name, version in versions],
            custom_metadata={PIPELINE: self.pipeline, INSTANCE: str(self.generation)},
        )

    def failure(self, error: Exception, table: LakeTableName | None = None) -> SinkError:
        # A backtrace and colours may follow the message.
        text = str(error).split("\n   0:")[0].replace("\x1b[31m", "").replace("\x1b[0m", "")
        low = PATHS.sub("", text.replace(self._root, "/")).lower()
        what = f"{table}: {text}" if table else text
        if "concurrent transaction" in low or "metadata changed" in low:
            return LakeFenced(what, pipeline=self.pipeline)
        if "invalid table version" in low:
            return LakeGone(what, location=self.location)
        refused = kind_of(error, remote=True) is AccessRefused
        if refused or any(word in low for word in REFUSALS):
            return LakeRefused(what, location=self.location)
        if table is not None and any(word in low for word in SCHEMA):
            return LakeTableUnfit(what, table=table)
        return LakeUnavailable(what, location=self.location)


class _DeltaTable(LakeTable):
    def __init__(self, lake: DeltaLake, name: LakeTableName, table: "DeltaTable") -> None:
        self._lake, self._name, self._table = lake, name, table
        self._position: Position | None = None
        with lake.failing(name):
            # The log's entry of the commit that was read or made last. A table that was created again
            # may reach the same version, but has another entry there.
            self._newest = next(iter(self._table.history(1)), None)

    def _ids(self, epoch: int) -> list[str]:
        prefix = f"waltap/{self._lake.pipeline}/{epoch}"
        return [f"{prefix}/end_lsn", f"{prefix}/commit_lsn", f"{prefix}/index"]

    def position(self, epoch: int) -> Position | None:
        self._position = self._committed(epoch)
        return self._position

    def _committed(self, epoch: int) -> Position | None:
        found = [self._table.transaction_version(name) for name in self._ids(epoch)]
        end_lsn, commit_lsn, index = found
        return None if end_lsn is None else Position(end_lsn, commit_lsn or 0, index or 0)

    def version(self) -> LakeTableVersion:
        return LakeTableVersion(str(self._table.metadata().id), self._table.version())

    def lost(self, known: LakeTableVersion) -> str | None:
        with self._lake.failing(self._name):
            self._table.update_incremental()
            commits = self._since(known)
            met = commits and commits[-1]["version"] == self._table.version()
            if not met or self._newest not in commits:
                # The log ends elsewhere or has another commit: the table was replaced or removed.
                # An open DeltaTable does not read its identity again, so open it again.
                fresh = self._lake.loaded(self._name)
                if fresh is None:
                    return GONE
                self._table = fresh
                commits = self._since(known)
            self._newest = commits[-1] if commits else None
        now = self.version()
        if now.identity != known.identity:
            return RECREATED
        if now.number < known.number:
            return f"is at version {now.number}, and was at {known.number}"
        if was_restored(commits, known.number, self._lake.pipeline):
            return f"was restored to a version before {known.number}"
        return None

    def _since(self, known: LakeTableVersion) -> list[dict[str, Any]]:
        """Return the commits from ``known`` on that the log still has, in order."""
        return self._table.history(max(1, self._table.version() - known.number + 1))[::-1]

    def append(self, rows: "pa.Table", epoch: int, position: Position) -> None:
        from deltalake import write_deltalake

        parts = (position.end_lsn, position.commit_lsn, position.index)
        commit = self._lake.commit(list(zip(self._ids(epoch), parts, strict=True)))
        with self._lake.failing(self._name):
            # The update by `lost` also reads commits of another instance of this pipeline.
            if self._committed(epoch) != self._position:
                raise LakeFenced(f"{self._name} was written to", pipeline=self._lake.pipeline)
            fitting = self._fitting(rows)
            try:
                with self._lake.failing(self._name):
                    write_deltalake(
                        self._table,
                        fitting,
                        mode="append",
                        schema_mode="merge",
                        commit_properties=commit,
                    )
            except LakeFenced as error:
                self._table = self._lake.loaded(self._name) or self._table
                has = self._committed(epoch)
                if has == self._position:
                    # Another program has changed the table's metadata.
                    raise LakeUnavailable(error.problem, location=self._lake.location) from error
                # A store sends a commit again whose answer was lost, and then meets it.
                (newest,) = self._table.history(1)
                if has != position or newest.get(INSTANCE) != str(self._lake.generation):
                    raise
            self._newest = next(iter(self._table.history(1)), None)
        self._position = position

    def _fitting(self, rows: "pa.Table") -> "pa.Table":
        """Return ``rows`` for the table. Raises: LakeTableUnfit."""
        # delta-rs would cast silently to the table's type while the values fit.
        there = pa.schema(self._table.schema().to_arrow())
        self._lake.require_takes(self._name, there, rows.schema)
        # It refuses another note on a column: varchar(10) became text, and both are strings here.
        plain = (
            field.remove_metadata() if field.name in there.names else field for field in rows.schema
        )
        return rows.cast(pa.schema(plain))

    def take_out(self, condition: str) -> None:
        with self._lake.failing(self._name):
            self._table.delete(condition)


def was_restored(commits: Sequence[Mapping[str, Any]], known: int, pipeline: str) -> bool:
    """Return whether the table lost version ``known`` or a later own commit.

    ``commits`` are the log's entries in order. Own commits name ``pipeline``.
    """
    # RESTORE takes rows back, but the log keeps the application transactions. So the positions
    # alone would not show the loss.
    times = {commit["version"]: commit.get("timestamp") or 0 for commit in commits}
    has, has_now, own = {known: True}, True, known
    for commit in commits:
        version, operation = commit["version"], str(commit.get("operation"))
        if version <= known:
            continue
        if operation == "RESTORE":
            target = restored_to(commit.get("operationParameters") or {}, times)
            # A later version that the log has lost counts as one without a RESTORE.
            has_now = target is not None and target >= own and has.get(target, True)
        elif "REPLACE TABLE" in operation:
            has_now = False
        if commit.get(PIPELINE) == pipeline:
            own = version
        has[version] = has_now
    return not has_now


def restored_to(parameters: Mapping[str, Any], times: Mapping[int, int]) -> int | None:
    """Return the target version of a RESTORE, None if it is unknown.

    Unknown are a time before all ``times`` of versions, and a local time as Spark writes it.
    """
    version, moment = (str(parameters.get(name, "")) for name in ("version", "datetime"))
    if version.isdigit():
        return int(version)
    if not moment.isdigit():
        return None
    return max((number for number, time in times.items() if time <= int(moment)), default=None)


def alike(one: Any, other: Any) -> bool:
    """Return whether two Arrow types are the same type in Delta."""
    # Names of the fields within lists and maps do not matter.
    fields = [[kind.field(n) for n in range(kind.num_fields)] for kind in (one, other)]
    if fields[0] or fields[1]:
        return one.id == other.id and len(fields[0]) == len(fields[1]) and all(
            alike(a.type, b.type) for a, b in zip(*fields, strict=True)
        )  # fmt: skip
    return bool(one == other)


def from_library() -> None:
    """Check that deltalake is installed. Raises: LibraryMissing."""
    with needing("the sink delta needs deltalake", extra="delta"):
        import deltalake  # noqa: F401
