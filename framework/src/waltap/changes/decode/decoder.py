"""The contract of a decoder: bytes in, messages out.

A decoder has no socket and no clock. Life cycle: the connector calls the factory of a
`DecoderSpec` with a `DecoderContext`, once per connection. It sends the server the decoder's
`start_options`, then calls `feed` with every group of frames.
"""

import abc
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from waltap.changes.decode.message import Message
from waltap.changes.decode.relation import Column, DataType, Relation

# (WAL start of the frame, payload of the output plugin).
Frame = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Describe the server of a connection, as the server reports itself."""

    # `server_version_num`, such as 150020.
    version_num: int
    version: str = ""
    system_id: str = ""
    timeline: int = 0
    two_phase_slot: bool = False
    # The database's encoding: plugins that convert nothing send text in it.
    encoding: str = "UTF8"


class Catalogue(Protocol):
    """Answer questions of decoders and codecs about the present schema."""

    def relation(self, schema: str, table: str) -> Relation | None:
        """Return the relation's present definition, or None."""

    def data_type(self, oid: int) -> DataType | None:
        """Return the type with that OID, or None."""

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        """Return whether rows of that name belong to a materialized view.

        The rows were written by transaction ``xid``. Output plugins that apply no publication
        send rows of materialized views like rows of tables. ``was_table`` says that a table of
        that name was known before ``xid``.
        """


class NameResolution(Protocol):
    """Check whether an answer of `DecoderContext.relation_at` is still valid.

    A caller that caches an answer of ``relation_at`` first records the value of `of` for the
    name. When a later transaction has another value, the caller asks ``relation_at`` again.
    """

    def due(self, xid: int) -> bool:
        """Return whether transaction ``xid`` must check the names of its rows.

        The decoder asks when the transaction begins. The answer is always true after a
        transaction without rows, because that one may have run any DDL. DDL inside a transaction
        with rows is looked for only as often as that is cheap.
        """

    def of(self, schema: str, table: str, xid: int) -> Hashable:
        """Return a token for a name at committed transaction ``xid``.

        Two equal tokens mean the same table or view, with the same replica identity and the same
        key.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCapabilities:
    """Declare the messages and values that a decoder can carry.

    The conformance kit tests that the decoder carries all of them and nothing else. Five are true by
    default, since most plugins have them: turn off those that your recordings lack.
    """

    # Updates and deletes carry the old key.
    old_key: bool = True
    # They carry the full old tuple under REPLICA IDENTITY FULL.
    old_row: bool = True
    # Truncate messages arrive.
    truncate: bool = False
    # Messages of pg_logical_emit_message arrive.
    logical_messages: bool = False
    # The replication origin of a transaction arrives.
    origin: bool = False
    # Transactions arrive while they are in progress.
    streaming: bool = False
    # Prepared transactions arrive.
    two_phase: bool = False
    # An untouched TOAST value differs from NULL.
    unchanged: bool = True
    # NaN and infinities differ from NULL.
    special_numbers: bool = True
    # The wire announces schema changes.
    relation_messages: bool = False
    # The server applies publications.
    publication_filters: bool = False
    commit_timestamps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderContext:
    """Carry the inputs of a decoder, at its construction.

    A relation of a transaction that may still abort stays as the wire shows it. The stage that
    delivers its rows after the commit describes the relation then.
    """

    server: ServerInfo
    catalogue: Catalogue
    # The source's publications; decoders without publications ignore them.
    publications: tuple[str, ...] = ()
    # The decoder's properties, by full name, with validated values; the decoder makes its model of them:
    # ``AcmeProperties.model_validate(dict(context.options))``.
    options: Mapping[str, object] = field(default_factory=dict)
    # Return whether the profile captures (schema, table); None: it captures all tables. A decoder
    # may replace row changes of other tables by `Skipped`, before it decodes them.
    captures: Callable[[str, str], bool] | None = None
    # Complete a captured relation from the catalogue; None: the stage that uses the relation
    # does. A decoder calls it for each announcement in a committed transaction, with that
    # transaction in `Relation.xid`, and gives rows the completed relation.
    describe: Callable[[Relation], Relation] | None = None
    # A decoder calls it with the OID of each announced relation that is not captured.
    hide: Callable[[int], None] | None = None
    # For decoders whose wire only names tables: return the table that (schema, table) meant in
    # the committed transaction of the third argument. The fourth has the columns of one of its
    # rows, as far as the wire describes them. None: ask the catalogue, which shows the present.
    relation_at: Callable[[str, str, int, Sequence[Column]], Relation | None] | None = None
    # Whether answers of `relation_at` are still valid; None: unknown.
    name_resolution: NameResolution | None = None
    # Return the dropped ones of these relation OIDs and an LSN: transactions that committed after
    # the LSN have no rows of them.
    gone: Callable[[Collection[int]], tuple[frozenset[int], int]] | None = None
    # A decoder calls it for each dropped relation that it releases, with the OID and an LSN after
    # which no row of the relation commits.
    forget: Callable[[int, int], None] | None = None
    # OID → LSN up to which its description is valid. At the first transaction that commits after
    # the LSN, the decoder removes the entry and describes the relation again.
    valid_until: dict[int, int] = field(default_factory=dict)


class Decoder(abc.ABC):
    """Turn frames into messages.

    There is one decoder per connection. It is single-threaded and never blocks.
    """

    name: str
    capabilities: DecoderCapabilities

    @abc.abstractmethod
    def start_options(self) -> dict[str, str]:
        """Return the options of START_REPLICATION, by name, unquoted."""

    def prepare(self, relation: Relation) -> None:
        """Build the row decoding of ``relation`` before its first row.

        `waltap explain` and the recorder call it; the stream does not.
        """

    @abc.abstractmethod
    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        """Decode ``frames``, in order; their grouping makes no difference.

        The frames may be a `FrameBlock`. Neighbouring inserts into one relation may come as one
        `InsertBlock`, and transactions of one insert as one `TransactionBlock`.

        Raises DecodeError, and nothing else, for bytes that break the plugin's protocol. The
        messages of earlier frames are lost with the bad one. That is safe: the position did not
        move.
        """


# Encodings of text that output plugins send unconverted.
#
# Such plugins send text in the encoding of the database.


# PostgreSQL's name → Python's. Only encodings of one byte a character: for these Python's tables
# equal the server's, which a test verifies. For encodings of more bytes the tables differ.
SINGLE_BYTE: Mapping[str, str] = {
    **{
        f"LATIN{n}": f"iso8859-{part}"
        for n, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), 1)
    },
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in (5, 6, 7, 8)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}


def is_readable(encoding: str) -> bool:
    """Return whether text of a database in ``encoding`` can be read."""
    # SQL_ASCII is unknown bytes: the server converts nothing, so text counts as UTF-8.
    return encoding in {"UTF8", "SQL_ASCII"} or encoding in SINGLE_BYTE


# Encoding → Python's codec, or None: decode as UTF-8.
codec_of: Final = SINGLE_BYTE.get
