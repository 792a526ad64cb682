"""Write Apache Iceberg tables with pyiceberg.

The position is a property of the table. The commit of rows sets it.
"""

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from waltap.base.files.errors import PATHS, AccessRefused, kind_of
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
from waltap_lake.properties import IcebergLakeProperties

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


# Properties of a new table. Iceberg then keeps the metadata of a hundred commits, not of all.
TABLE_PROPERTIES: Final = {"write.metadata.delete-after-commit.enabled": "true"}

# Further words of catalogues and file systems that refuse the user.
REFUSALS: Final = re.compile(
    r"access ?denied|authentication failed|fatal:  role \"|forbidden|permission denied|unauthorized"
)


class IcebergLake(LakeConnection):
    """Open tables of one catalogue."""

    def __init__(self, properties: IcebergLakeProperties, pipeline: str) -> None:
        self.pipeline, self._properties = pipeline, properties
        self._settings = {
            name.removeprefix("catalog."): value for name, value in properties.settings.items()
        }
        self.location = f"catalogue {properties.catalog}"
        space, _, name = properties.position_table.rpartition(".")
        self._name = LakeTableName(space or "waltap", name)
        self._catalog: Catalog | None = None
        self._positions: Table | None = None

    def check(self) -> None:
        try:
            catalog = self._load()
            with self.failing():
                catalog.list_namespaces()
        finally:
            self.close()

    def open(self) -> LakeOffset | None:
        self._load()
        self._positions = self.made(self._name, pa.schema([("pipeline", pa.string())]))
        text = self._positions.properties.get(f"waltap.{self.pipeline}")
        return None if text is None else LakeOffset.decode(text)

    def keep(self, offset: LakeOffset) -> None:
        from pyiceberg.exceptions import CommitFailedException

        assert self._positions is not None, "open comes first"
        name, text, table = f"waltap.{self.pipeline}", offset.encode(), self._positions
        known = table.properties.get(name)
        with self.failing(self._name):
            for _ in range(KEEP_TRIES):
                # pyiceberg would overwrite the offset of another instance, so read it before.
                table.refresh()
                if table.properties.get(name) not in (known, text):
                    raise LakeFenced(f"{self._name} has another offset", pipeline=self.pipeline)
                # Another pipeline may store its offset at the same time.
                with suppress(CommitFailedException):
                    with table.transaction() as transaction:
                        transaction.set_properties({name: text})
                    return
        raise LakeUnavailable(f"{self._name} {KEEP_BUSY}", location=self.location)

    def table(self, name: LakeTableName, schema: "pa.Schema") -> LakeTable:
        return _IcebergTable(self, name, self.made(name, schema))

    def existing(self, name: LakeTableName) -> LakeTable | None:
        found = self.loaded(name)
        return None if found is None else _IcebergTable(self, name, found)

    def loaded(self, name: LakeTableName) -> "Table | None":
        """Return a table as the catalogue has it now, None if it is missing.

        Raises: SinkError.
        """
        from pyiceberg.exceptions import NoSuchTableError

        assert self._catalog is not None, "open comes first"
        with self.failing(name):
            try:
                return self._catalog.load_table((name.space, name.name))
            except NoSuchTableError:
                return None

    def takes(self, kind: "pa.DataType", other: "pa.DataType") -> bool:
        return takes(kind, other)

    def close(self) -> None:
        catalog, self._catalog, self._positions = self._catalog, None, None
        if catalog is not None:
            catalog.close()

    def _load(self) -> "Catalog":
        with needing("the sink iceberg needs pyiceberg", extra="iceberg"):
            from pyiceberg.catalog import load_catalog
        # pyiceberg warns of each attempt that lost a race, and retries. The last failure is raised.
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)
        with self.failing():
            self._catalog = load_catalog(self._properties.catalog, **self._settings)
        return self._catalog

    def made(self, name: LakeTableName, schema: "pa.Schema") -> "Table":
        """Return a table. A missing namespace or table is created."""
        assert self._catalog is not None, "open comes first"
        with self.failing(name):
            self._catalog.create_namespace_if_not_exists(name.space)
            return self._catalog.create_table_if_not_exists(
                (name.space, name.name), schema=schema, properties=TABLE_PROPERTIES
            )

    def failure(self, error: Exception, table: LakeTableName | None = None) -> SinkError:
        from pyarrow import ArrowException
        from pyiceberg import exceptions as their
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        # The statement that SQLAlchemy appends has names of tables.
        text = str(error).split("\n[SQL: ")[0].split("\n(Background")[0]
        low, what = PATHS.sub("", text).lower(), f"{table}: {text}" if table else text
        denied = (their.UnauthorizedError, their.ForbiddenError, PermissionError)
        refused = isinstance(error, denied) or kind_of(error, remote=True) is AccessRefused
        if refused or REFUSALS.search(low):
            return LakeRefused(what, location=self.location)
        if isinstance(error, (their.NoSuchTableError, FileNotFoundError)):
            return LakeGone(what, location=self.location)
        unfit = (their.ValidationError, UnsupportedPyArrowTypeException, ArrowException, TypeError)
        if table is not None and isinstance(error, unfit):
            return LakeTableUnfit(what, table=table)
        return LakeUnavailable(what or repr(error), location=self.location)


class _IcebergTable(LakeTable):
    def __init__(self, lake: IcebergLake, name: LakeTableName, table: "Table") -> None:
        self._lake, self._name, self._table = lake, name, table
        self._property = f"waltap.{lake.pipeline}"
        self._known = table.properties.get(self._property)

    def position(self, epoch: int) -> Position | None:
        if self._known is None:
            return None
        found, position = msgspec.json.decode(self._known, type=tuple[int, Position])
        return position if found == epoch else None

    def version(self) -> LakeTableVersion:
        metadata = self._table.metadata
        return LakeTableVersion(
            str(metadata.table_uuid),
            getattr(metadata, "last_sequence_number", 0),  # format 1 has none
            metadata.current_snapshot_id or 0,
        )

    def lost(self, known: LakeTableVersion) -> str | None:
        fresh = self._lake.loaded(self._name)
        if fresh is None:
            return GONE
        self._table = fresh
        if self.version().identity != known.identity:
            return RECREATED
        wanted, number = known.snapshot, known.number
        for snapshot in fresh.metadata.snapshots:  # the offset may lack a commit after a crash
            own = snapshot.summary is not None and snapshot.summary.get(self._property)
            if own and (snapshot.sequence_number or 0) > number:
                wanted, number = snapshot.snapshot_id, snapshot.sequence_number or 0
        if wanted == 0 or descends(fresh.metadata, wanted, known.number):
            return None
        return f"is at snapshot {self.version().snapshot or 'none'}, which lacks {wanted}"

    def append(self, rows: "pa.Table", epoch: int, position: Position) -> None:
        text = msgspec.json.encode((epoch, position)).decode()
        with self._lake.failing(self._name):
            # `lost` has read the table again, with commits of another instance.
            if self._table.properties.get(self._property) != self._known:
                raise LakeFenced(f"{self._name} was written to", pipeline=self._lake.pipeline)
            self._lake.require_takes(self._name, self._table.schema().as_arrow(), rows.schema)
            with self._table.transaction() as transaction:
                with transaction.update_schema() as update:
                    update.union_by_name(rows.schema)
                transaction.append(rows, snapshot_properties={self._property: text})
                transaction.set_properties({self._property: text})
        self._known = text

    def take_out(self, condition: str) -> None:
        import warnings

        with self._lake.failing(self._name), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pyiceberg warns if there is nothing to delete
            self._table.refresh()
            self._table.delete(condition)


def takes(kind: "pa.DataType", other: "pa.DataType") -> bool:
    """Return whether a column of the type ``kind`` takes values of ``other``.

    It may become wider. pyiceberg also takes a larger scale, and bytes as text. That is no evolution of
    Iceberg: other readers see other values.
    """
    types = pa.types
    if types.is_decimal(kind) and types.is_decimal(other):
        integer_digits = kind.precision - kind.scale
        narrower = kind.scale > other.scale and integer_digits >= other.precision - other.scale
        return bool(kind.scale == other.scale or narrower)
    for of_family in (types.is_integer, types.is_floating, _is_text, _is_bytes):
        if of_family(kind):
            return bool(of_family(other))
    if types.is_struct(kind) and types.is_struct(other):
        there = {field.name: field.type for field in kind.fields}
        return all(takes(there.get(field.name, field.type), field.type) for field in other.fields)
    if kind.num_fields and kind.num_fields == other.num_fields:
        pairs = ((kind.field(n).type, other.field(n).type) for n in range(kind.num_fields))
        return _is_list(kind) == _is_list(other) and all(takes(*pair) for pair in pairs)
    return bool(kind == other)


def _is_text(kind: "pa.DataType") -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: "pa.DataType") -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: "pa.DataType") -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def descends(metadata: "TableMetadata", wanted: int, number: int) -> bool:
    """Return whether the current snapshot is ``wanted`` or descends from it.

    The chain of parents may end at an expired snapshot. Then the rest of the chain must be later than
    the sequence number ``number``.
    """
    there = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        parent = snapshot.parent_snapshot_id
        if wanted in {snapshot.snapshot_id, parent}:
            return True
        if parent not in there:
            # pyiceberg removes the id of an expired parent, other writers keep it.
            expired = parent is not None or wanted not in there
            later = metadata.format_version == 1 or (snapshot.sequence_number or 0) > number
            return expired and later
        snapshot = there[parent]
    return False
