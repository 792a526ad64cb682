"""Every hook that waltap calls on a plugin.

Hooks run at start-up or on a rare event, never per row.

``register_*`` hooks are called at most once per host, when a spec of their kind is first needed; each
returns an iterable of specs. Each command and each engine has its own host. Names are unique among
their kind over all plugins: a clash is WT-1102 and names both distributions. An exception in one is
reported as that plugin's health (WT-1103) and is fatal only for a profile that needs it.

``choose_*`` hooks are called rarely, and the first answer that is not None wins.

``on_*`` hooks observe, per batch or per change of state. They run in the engine's thread and must be
quick. An observer that raises is logged and otherwise ignored.

pluggy calls the implementations, so its options hold for all hooks. ``tryfirst`` and ``trylast`` order
them; otherwise the plugin registered last comes first. A wrapper (``@hookimpl(wrapper=True)``) runs
around the others. For a ``register_*`` hook it receives and returns a list of each plugin's specs. For a
``choose_*`` hook it receives the answer, for an ``on_*`` hook a list without meaning. A wrapper that
raises is blamed like any other implementation. Around ``register_*`` and ``on_*`` hooks the results of
the others still count.

An implementation may omit arguments, and later versions only add arguments to a specification.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from waltap.changes.decode.relation import Relation
    from waltap.changes.transactions.position import Positions
    from waltap.changes.transactions.transaction import Batch, TransactionPart
    from waltap.config.profile import Profile
    from waltap.ports import specs
    from waltap.ports.offsets.offset import ConnectOffsets
    from waltap.ports.sink.verification import TableComparison

hookspec = pluggy.HookspecMarker("waltap")
hookimpl = pluggy.HookimplMarker("waltap")

API_VERSION = 1
"""A plugin module may set ``WALTAP_API = 1``; another number is refused as WT-1104."""

# --- register: start-up ------------------------------------------------------------------------


@hookspec
def register_connectors() -> "Iterable[specs.ConnectorSpec]":  # type: ignore[empty-body]
    """Contribute source databases."""


@hookspec
def register_decoders() -> "Iterable[specs.DecoderSpec]":  # type: ignore[empty-body]
    """Contribute decoders of logical decoding output plugins."""


@hookspec
def register_replica_identities() -> "Iterable[specs.ReplicaIdentitySpec]":  # type: ignore[empty-body]
    """Contribute the semantics of replica identities."""


@hookspec
def register_snapshotters() -> "Iterable[specs.SnapshotterSpec]":  # type: ignore[empty-body]
    """Contribute snapshot modes."""


@hookspec
def register_types() -> "Iterable[specs.TypeSpec]":  # type: ignore[empty-body]
    """Contribute type mappings.

    A lower ``order`` is asked before the built-in ones (100).
    """


@hookspec
def register_formats() -> "Iterable[specs.FormatSpec]":  # type: ignore[empty-body]
    """Contribute record formats."""


@hookspec
def register_transforms() -> "Iterable[specs.TransformSpec]":  # type: ignore[empty-body]
    """Contribute transforms: of batches, of events, of records."""


@hookspec
def register_predicates() -> "Iterable[specs.PredicateSpec]":  # type: ignore[empty-body]
    """Contribute predicates, which select records for a transform."""


@hookspec
def register_converters() -> "Iterable[specs.ColumnConverterSpec]":  # type: ignore[empty-body]
    """Contribute converters of columns.

    Debezium's property ``converters`` lists them.
    """


@hookspec
def register_topic_naming() -> "Iterable[specs.TopicNamingSpec]":  # type: ignore[empty-body]
    """Contribute topic naming strategies."""


@hookspec
def register_sinks() -> "Iterable[specs.SinkSpec]":  # type: ignore[empty-body]
    """Contribute destinations."""


@hookspec
def register_table_formats() -> "Iterable[specs.TableFormatSpec]":  # type: ignore[empty-body]
    """Contribute table formats, for ``format`` of the Spark sink."""


@hookspec
def register_offset_stores() -> "Iterable[specs.OffsetStoreSpec]":  # type: ignore[empty-body]
    """Contribute offset stores."""


@hookspec
def register_signal_actions() -> "Iterable[specs.SignalActionSpec]":  # type: ignore[empty-body]
    """Contribute types of signals, each with its action."""


@hookspec
def register_signal_channels() -> "Iterable[specs.SignalChannelSpec]":  # type: ignore[empty-body]
    """Contribute signal channels beside the signal table (``source``)."""


@hookspec
def register_notification_channels() -> "Iterable[specs.NotificationChannelSpec]":  # type: ignore[empty-body]
    """Contribute channels for notifications."""


@hookspec
def register_checks() -> "Iterable[specs.CheckSpec]":  # type: ignore[empty-body]
    """Contribute checks before a start.

    ``waltap doctor`` prints them; a run with errors is refused.
    """


@hookspec
def register_commands() -> "Iterable[specs.CommandSpec]":  # type: ignore[empty-body]
    """Contribute sub-commands of the CLI."""


# --- choose: rare, first answer wins ---------------------------------------------------------------


@hookspec(firstresult=True)
def choose_replica_identity(relation: "Relation") -> str | None:
    """Name the replica identity to read ``relation`` with.

    Called once or twice per relation version: for its warnings, and for its changes. Without an answer,
    the one with the server's letter is used.
    """


@hookspec(firstresult=True)
def choose_topic(relation: "Relation") -> str | None:
    """Name the topic of ``relation``.

    Called once per relation version; None: by naming strategy.
    """


@hookspec(firstresult=True)
def choose_password(host: str, port: int, user: str, database: str) -> str | None:
    """Return a password for the source, such as a token.

    Called before each new connection, so a token may be short-lived; None: the profile's password. The
    connection waits for it: be quick. An exception counts as a source that does not answer, and is
    retried; a `waltap.errors.WaltapError` keeps its own meaning.
    """


@hookspec(firstresult=True)
def choose_connect_offsets(location: str, sink: object) -> "ConnectOffsets | None":
    """Return the Kafka Connect offsets at ``location``.

    ``location`` is an address of the plugin's scheme, or a name at the destination of the profile's sink;
    ``sink`` is the properties of that sink. Called once by ``waltap offsets import`` and ``export``. The
    result connects on first use.
    """


@hookspec(firstresult=True)
def choose_comparison(
    profile: "Profile", tables: "Sequence[str]", patience_s: float
) -> "Mapping[str, TableComparison] | None":
    """Compare ``tables`` (schema.table) of the destination with the source.

    Both may change meanwhile; changes in progress are awaited for at most ``patience_s``. Called by
    ``waltap repair``, in a thread beside the engine's, to read only the differences again. A table
    without an answer cannot be compared; None: the destination has no comparison.
    """


# --- on: notices -----------------------------------------------------------------------------------


@hookspec
def on_state(pipeline: str, state: str, detail: str) -> None:
    """A pipeline entered ``state``.

    The states are checking, standby, snapshot, streaming, reconnecting, stopped and failed.
    ``detail`` is one line for people.
    """


@hookspec
def on_batch(pipeline: str, batch: "Batch", seconds: float) -> None:
    """``batch`` was written to the sink in ``seconds``.

    It may not be durable yet.
    """


@hookspec
def on_flush(pipeline: str, durable: "Positions", seconds: float) -> None:
    """The sink was flushed in ``seconds`` and confirmed ``durable``.

    ``durable`` is the position in each partition up to which the sink has everything. It is stored, and
    confirmed to the server, after this call.
    """


@hookspec
def on_transaction(pipeline: str, part: "TransactionPart") -> None:
    """The last part of a transaction was written to the sink."""


@hookspec
def on_snapshot(
    pipeline: str, event: str, table: str, rows: int, total: int | None, kind: str
) -> None:
    """A snapshot advanced.

    ``event``: started, table_started, progress, table_completed, table_failed, completed or aborted;
    ``table`` is "" for the first and the last two. ``rows`` are the table's rows so far, ``total`` the
    planner's estimate or None. ``kind``: initial, blocking or incremental. Snapshots of different kinds
    may overlap. Called at most a few times a second.
    """


@hookspec
def on_schema_change(pipeline: str, old: "Relation | None", new: "Relation") -> None:
    """A relation appeared for the first time (``old`` None) or in another shape."""


@hookspec
def on_new_table(pipeline: str, table: str, event: str) -> None:
    """A table is captured that was not captured before, or the reverse.

    At a start ``event`` is joined (nothing is missing), snapshot (an incremental snapshot was requested)
    or incomplete (earlier rows are missing). While streaming it is created (captured from its creation),
    snapshot, incomplete, or uncaptured (until the next start). A captured table is interrupted when the
    server stops streaming it, or a part of it.
    """


@hookspec
def on_slot(pipeline: str, event: str, slot: str, lsn: int) -> None:
    """The replication slot was created, dropped or confirmed (``event``) at ``lsn``."""


@hookspec
def on_signal(pipeline: str, kind: str, identifier: str, data: str) -> None:
    """A signal arrived and will be executed."""


@hookspec
def on_failure(pipeline: str, error: Exception, retried: bool) -> None:
    """An operation failed; ``retried``: the engine will try it again."""
