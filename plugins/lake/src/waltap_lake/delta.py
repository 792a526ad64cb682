"""Delta Lake by deltalake (delta-rs): a position is three application transactions of the commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap.errors import SinkError
from waltap.files.place import refusal
from waltap.files.store import safe_name
from waltap.plugin_errors import LibraryMissing
from waltap.source.position import Position
from waltap_lake.errors import LakeFenced, LakeGone, LakeRefused, LakeTableUnfit, LakeUnavailable
from waltap_lake.lake import LakeConnection, LakeTable, LakeTableName, fitting
from waltap_lake.lake_offset import LakeOffset
from waltap_lake.properties import DeltaLakeProperties

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

__all__ = ["DeltaLake"]

REFUSALS: Final = (
    "accessdenied",
    "forbidden",
    "invalidaccesskeyid",
    "permission denied",
    "signaturedoesnotmatch",
    "unauthorized",
)
SCHEMA: Final = ("cast", "schema", "invalid data type", "cannot merge")


class DeltaLake(LakeConnection):
    """Tables below one folder: ``path/space/name``."""

    def __init__(self, properties: DeltaLakeProperties, pipeline: str) -> None:
        self.place, self.pipeline = properties.path, pipeline
        self._root = properties.path.rstrip("/")
        self.options = {
            name.removeprefix("storage."): value for name, value in properties.storage.items()
        } or None
        self._positions_name = properties.position_table
        self._positions: DeltaTable | None = None

    def check(self) -> None:
        from_library()
        from deltalake import DeltaTable

        if "://" not in self._root:
            reason = refusal(Path(self._root), folder=True)
            if reason is not None:
                raise self.failure(reason) from reason
            return
        with self.failing():
            DeltaTable.is_deltatable(self.uri(self._name()), self.options)

    def open(self) -> LakeOffset | None:
        from_library()
        import pyarrow as pa
        from deltalake import DeltaTable

        with self.failing():
            self._positions = DeltaTable.create(
                self.uri(self._name()),
                pa.schema([("pipeline", pa.string())]),
                mode="ignore",
                storage_options=self.options,
                configuration={"delta.logRetentionDuration": "interval 1 days"},
            )
            text = self._positions.metadata().configuration.get(f"waltap.{self.pipeline}")
        return None if text is None else LakeOffset.decode(text)

    def keep(self, mark: LakeOffset) -> None:
        assert self._positions is not None, "open comes first"
        with self.failing(self._name()):
            self._positions.alter.set_table_properties(
                {f"waltap.{self.pipeline}": mark.encode()},
                raise_if_not_exists=False,
                commit_properties=self.commit([(f"waltap/{self.pipeline}", mark.generation)]),
            )

    def table(self, name: LakeTableName, schema: "pa.Schema") -> LakeTable:
        from deltalake import DeltaTable

        with self.failing(name):
            made = DeltaTable.create(
                self.uri(name), schema, mode="ignore", storage_options=self.options
            )  # fmt: skip
        return _DeltaTable(self, name, made)

    def fitted(self, rows: "pa.Table") -> "pa.Table":
        import pyarrow as pa

        kinds = [field.with_type(fitting(field.type, times=False)) for field in rows.schema]
        return rows.cast(pa.schema(kinds))

    def close(self) -> None:
        self._positions = None

    def uri(self, name: LakeTableName) -> str:
        return "/".join((self._root, *(safe_name(part) for part in name if part)))

    def _name(self) -> LakeTableName:
        space, _, name = self._positions_name.rpartition(".")
        return LakeTableName(space, name)

    def commit(self, versions: list[tuple[str, int]]) -> "CommitProperties":
        """Return what a commit carries: versions of application transactions."""
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            app_transactions=[Transaction(name, version) for name, version in versions],
            custom_metadata={"waltap.pipeline": self.pipeline},
        )

    @contextmanager
    def failing(self, table: LakeTableName | None = None) -> Iterator[None]:
        try:
            yield
        except SinkError:
            raise
        except Exception as error:  # delta-rs raises plain ones, too
            raise self.failure(error, table) from error

    def failure(self, error: Exception, table: LakeTableName | None = None) -> SinkError:
        """Return what ``error`` of delta-rs means; its words are all that it gives."""
        text = str(error).split("\n   0:")[0].replace("\x1b[31m", "").replace("\x1b[0m", "")
        low, what = text.lower(), f"{table}: {text}" if table else text
        if "concurrent transaction" in low or "metadata changed" in low:
            return LakeFenced(what, pipeline=self.pipeline)
        if "invalid table version" in low:
            return LakeGone(what, place=self.place)
        if any(word in low for word in REFUSALS):
            return LakeRefused(what, place=self.place)
        if table is not None and any(word in low for word in SCHEMA):
            return LakeTableUnfit(what, table=table)
        return LakeUnavailable(what, place=self.place)


class _DeltaTable(LakeTable):
    def __init__(self, lake: DeltaLake, name: LakeTableName, table: "DeltaTable") -> None:
        self._lake, self._name, self._table = lake, name, table

    def _ids(self, epoch: int) -> list[str]:
        prefix = f"waltap/{self._lake.pipeline}/{epoch}"
        return [f"{prefix}/end_lsn", f"{prefix}/commit_lsn", f"{prefix}/index"]

    def position(self, epoch: int) -> Position | None:
        found = [self._table.transaction_version(name) for name in self._ids(epoch)]
        end_lsn, commit_lsn, index = found
        return None if end_lsn is None else Position(end_lsn, commit_lsn or 0, index or 0)

    def append(self, rows: "pa.Table", epoch: int, position: Position) -> None:
        from deltalake import write_deltalake

        parts = (position.end_lsn, position.commit_lsn, position.index)
        commit = self._lake.commit(list(zip(self._ids(epoch), parts, strict=True)))
        with self._lake.failing(self._name):
            self._same_types(rows.schema)
            write_deltalake(
                self._table, rows, mode="append", schema_mode="merge", commit_properties=commit
            )

    def _same_types(self, schema: "pa.Schema") -> None:
        """Raises: LakeTableUnfit. delta-rs would cast to the type that the table has, where values fit."""
        import pyarrow as pa

        there = {field.name: field.type for field in pa.schema(self._table.schema().to_arrow())}
        for field in schema:
            kind = there.get(field.name, field.type)
            if not alike(kind, field.type):
                raise LakeTableUnfit(
                    f"{self._name}: column {field.name} is {kind}, the source has {field.type} now",
                    table=self._name,
                )

    def take_out(self, condition: str) -> None:
        with self._lake.failing(self._name):
            self._table.delete(condition)


def alike(one: Any, other: Any) -> bool:
    """Tell whether two Arrow types are one for Delta: names of what lists and maps hold do not count."""
    fields = [[kind.field(n) for n in range(kind.num_fields)] for kind in (one, other)]
    if fields[0] or fields[1]:
        return one.id == other.id and len(fields[0]) == len(fields[1]) and all(
            alike(a.type, b.type) for a, b in zip(*fields, strict=True)
        )  # fmt: skip
    return bool(one == other)


def from_library() -> None:
    """Raises: LibraryMissing."""
    try:
        import deltalake  # noqa: F401
    except ImportError as cause:
        raise LibraryMissing("the sink delta needs deltalake", extra="delta") from cause
