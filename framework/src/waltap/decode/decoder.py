"""The contract of a decoder: bytes of an output plugin in, messages out; no socket, no clock.

Life cycle: the factory of a `DecoderSpec` is called with a `DecoderContext` once per connection;
`start_options` tells what to ask of the server; `feed` is called with every group of frames.
"""

import abc
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from waltap.decode.message import Message
from waltap.decode.relation import Column, DataType, Relation

__all__ = [
    "Catalogue",
    "Decoder",
    "DecoderCapabilities",
    "DecoderContext",
    "Frame",
    "NameResolution",
    "ServerInfo",
]

Frame = tuple[int, bytes]
"""(WAL start of the frame, payload of the output plugin)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the server said of itself. ``version_num`` is ``server_version_num`` (150020), ``encoding``
    that of the database, in which plugins that convert nothing send text."""

    version_num: int
    version: str = ""
    flavour: str = "postgresql"
    system_id: str = ""
    timeline: int = 0
    two_phase_slot: bool = False
    encoding: str = "UTF8"


class Catalogue(Protocol):
    """What decoders and codecs may ask about the database; answers show the present schema."""

    def relation(self, schema: str, table: str) -> Relation | None:
        """Return the relation as the catalogue has it now, or None."""

    def data_type(self, oid: int) -> DataType | None:
        """Return the type with that OID, or None."""

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        """Tell whether rows of that name which transaction ``xid`` wrote are of a materialized view,
        not of a table: output plugins that apply no publication send both. ``was_table``: a table of that
        name is known of before ``xid``."""


class NameResolution(Protocol):
    """Whether what `DecoderContext.relation_at` said of a name holds still.

    Whoever keeps an answer of ``relation_at`` takes what stands for the name before it asks, and asks
    anew where another value stands for a later transaction.
    """

    def due(self, xid: int) -> bool:
        """Tell, when transaction ``xid`` begins, whether what stands for the names that it has rows of is
        to be looked at. After a transaction without rows, which may have done anything, it always is;
        what a transaction did beside its rows is looked for as often as is cheap."""

    def of(self, schema: str, table: str, xid: int) -> Hashable:
        """Return what stands for a name at committed transaction ``xid``: two equal values mean the same
        table (or view) of the same replica identity and the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCapabilities:
    """What a decoder can carry; the kit tests that it does all of it and nothing else.

    ``old_row``: full old tuples under REPLICA IDENTITY FULL. ``old_key``: old keys. ``truncate``,
    ``logical_messages``, ``origin``: such messages arrive. ``streaming``: in-progress transactions.
    ``two_phase``: prepared transactions. ``binary``: values in send format. ``unchanged``: an
    untouched TOAST value is told apart from NULL. ``special_numbers``: NaN and infinities are told
    apart from NULL. ``relations``: schema changes are announced on the wire. ``filters``: the
    server applies publications.
    """

    old_key: bool = True
    old_row: bool = True
    truncate: bool = False
    logical_messages: bool = False
    origin: bool = False
    streaming: bool = False
    two_phase: bool = False
    binary: bool = False
    unchanged: bool = True
    special_numbers: bool = True
    relations: bool = False
    filters: bool = False
    commit_timestamps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderContext:
    """What a decoder may know when it is made.

    ``options`` are the decoder's own validated properties, by name. ``publications`` are the names the
    source wants (decoders without publications ignore them). ``captures`` tells, for (schema, table),
    whether the profile wants the table (None: it wants all); a decoder may leave out row changes of other
    tables early, giving `Skipped` in their place. ``describe`` completes a captured relation from the
    catalogue (None: whoever uses the relation does): a decoder asks it whenever the server announces the
    relation in a transaction that has committed, with `Relation.xid` saying which, and gives rows the
    completed one. Rows of a transaction that may still be aborted have the relation as the wire shows it,
    and whoever hands them out describes it then. ``relation_at`` is for decoders whose wire names tables
    and does not tell what they are: what (schema, table) meant for the committed transaction of the third
    argument, a row of which shows the columns of the fourth, those that it names, with what it says of
    them (None: ask the catalogue, which shows the present), and ``standings`` whether that holds still
    (None: nobody knows). ``gone`` tells which of the relations with these OIDs exist no more, and an LSN:
    transactions that committed after it have no rows of them. ``forget`` is to be called with the OID of
    each such relation when the decoder lets go of it, and an LSN behind which no row of it commits.
    ``unsettled`` gives, by OID, the LSN up to which a description holds: at the first transaction that
    committed after it, the decoder takes the entry out and describes the relation anew. ``text_only``:
    values are not to be asked for in send format, whatever ``options`` say.
    """

    server: ServerInfo
    catalogue: Catalogue
    publications: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    captures: Callable[[str, str], bool] | None = None
    describe: Callable[[Relation], Relation] | None = None
    relation_at: Callable[[str, str, int, Sequence[Column]], Relation | None] | None = None
    standings: NameResolution | None = None
    gone: Callable[[Collection[int]], tuple[frozenset[int], int]] | None = None
    forget: Callable[[int, int], None] | None = None
    unsettled: dict[int, int] = field(default_factory=dict)
    text_only: bool = False


class Decoder(abc.ABC):
    """Turns frames into messages. One object per connection; single-threaded; never blocks."""

    name: str
    capabilities: DecoderCapabilities

    @abc.abstractmethod
    def start_options(self) -> dict[str, str]:
        """Return the options of START_REPLICATION, by name, unquoted."""

    def prepare(self, relation: Relation) -> None:
        """Make what rows of ``relation`` need, before there are any; for whoever looks into it."""

    @abc.abstractmethod
    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        """Decode ``frames``, in order; how they are grouped makes no difference.

        Raises: DecodeError, and nothing else, for bytes that are not what the plugin promises.
        Messages of frames before the bad one are lost with it, which is safe: the position did
        not move.
        """
