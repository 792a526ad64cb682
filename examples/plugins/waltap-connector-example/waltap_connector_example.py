"""A connector: follows a journal, a file of JSON lines, of which each is one transaction.

    {"changes": [{"op": "c", "table": "orders", "row": {"id": "1", "total": "19.90"}}]}

``op`` is c, u or d; values are texts; the first column is the key. The position of a transaction is the place
in the file behind its line: it grows, and a start can go on from there.
"""

import json
import zlib
from pathlib import Path

from waltap.config import Properties, declare
from waltap.changes.decode import (
    Column,
    DataType,
    Delete,
    Insert,
    OldTuple,
    Relation,
    ServerInfo,
    Update,
)
from waltap.changes.decode.message import Begin, Commit
from waltap.errors import SourceError
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.source.connector import ChangeStream, PreflightCheck, Connector, StartPosition
from waltap.changes.transactions.position import START
from waltap.ports.specs import ConnectorSpec

TEXT = DataType(oid=25, schema="pg_catalog", name="text")
BATCH = 1000
"""Transactions that one look gives at most: the engine is to have a say in between."""


class JournalMissing(SourceError):
    """There is no such file."""

    code = "WT-2990"
    remedy = "Give journal.path a file that exists."


class JournalProperties(Properties):
    """Where the journal is."""

    path: Path = declare("journal.path", summary="File of the journal.")


# [connector]
class JournalConnector(Connector):
    """Where changes come from."""

    def __init__(self, properties, context):
        self._path, self._context = properties.path, context
        self.server = ServerInfo(version_num=0, system_id=str(self._path), timeline=1)

    def check(self, offset):
        """What `prepare` would refuse is an error here: `waltap doctor` prints it."""
        if self._path.exists():
            return [PreflightCheck(name="journal", verdict="ok", found=str(self._path))]
        return [PreflightCheck.failed("journal", JournalMissing(f"{self._path} is not there"))]

    def prepare(self, offset):
        """Go on from the stored offset; without one, from the beginning."""
        if offset is None:
            partition = PartitionOffset(
                position=START,
                slot=self._path.name,
                database="",
                system_id=str(self._path),
                timeline=1,
            )
            offset = Offset.of(partition)
        return StartPosition(snapshot=False, stream=True, offset=offset)

    def snapshot(self, start):
        return iter(())  # the journal has everything from its beginning

    def stream(self, position):
        return JournalStream(self._path, position.end_lsn, self._context)

    def describe(self, relation):
        return relation  # it is complete already

    def undo(self):
        """Nothing was made."""

    def close(self):
        """Nothing is held."""


# [/connector]


# [stream]
class JournalStream(ChangeStream):
    """Gives what has been appended. At the end it is a server without anything new."""

    confirms = False  # a file has nobody who wants to hear what is durable

    def __init__(self, path, begin, context):
        self._file, self._context = path.open("rb"), context
        self._file.seek(begin)
        self._at, self._relations = begin, {}

    def receive(self, timeout):
        messages = []
        for _ in range(BATCH):
            line = self._file.readline()
            if not line.endswith(b"\n"):  # nothing, or half a line: its writer is at work
                self._file.seek(self._at)
                break
            messages += self._transaction(json.loads(line), self._at + len(line))
            self._at += len(line)
        return messages

    def _transaction(self, document, end):
        yield Begin(lsn=end, xid=end, commit_lsn=end, commit_ts=0)
        for change in document["changes"]:
            relation = self._relation(change["table"], list(change["row"]))
            row = tuple(change["row"].values())
            match change["op"]:
                case "c":
                    yield Insert(relation, end, row)
                case "u":
                    yield Update(relation, end, row)
                case "d":
                    key = row[:1] + (None,) * (len(row) - 1)
                    yield Delete(relation, end, key, OldTuple.KEY)
        yield Commit(lsn=end, commit_lsn=end, end_lsn=end, commit_ts=0, xid=end)

    def _relation(self, table, names):
        """Return the relation: one object as long as its columns are the same."""
        known = self._relations.get(table)
        if known is None or [column.name for column in known.columns] != names:
            columns = tuple(
                Column(
                    name=name, type_oid=TEXT.oid, in_identity=n == 0, data_type=TEXT, nullable=n > 0
                )
                for n, name in enumerate(names)
            )
            known = Relation(
                oid=zlib.crc32(table.encode()),
                schema="journal",
                table=table,
                primary_key=(names[0],),
                columns=columns,
            )
            self._relations[table] = known
        return known

    def idle_lsn(self):
        return self._at

    def confirm(self, end_lsn):
        """Nobody hears."""

    def request_keepalive(self):
        """Nobody answers."""

    def close(self):
        self._file.close()


# [/stream]


@hookimpl
def register_connectors():
    return [
        ConnectorSpec(
            name="journal",
            summary="A file of JSON lines, each a transaction.",
            properties=JournalProperties,
            factory=JournalConnector,
        )
    ]
