"""Find newly captured tables, and their missing rows.

A file beside the offset has the captured tables of the last start. A start that reads every table writes
it before it reads, since it may be killed before it streams. A table that joins at a start without a
snapshot lacks its older rows at the destination. The exception is a stream that has every table from its
creation on, and a table that is newer than the last start. OIDs distinguish tables: a recreated table is
another one. A table that the server stopped streaming, wholly or in part, joins again when a start repairs
that, also if it was changed back since.

Changes that the server did not stream of a captured table are a gap, even if an operator changed the
publication: a certificate records it.

A table is read after the transactions have ended that wrote to it before it was published: the stream
lacks their changes.

A table that was captured earlier and left out for a while has rows at the destination that the source may
have deleted. No incremental snapshot reports them, so a warning does, and the sink gets the table's name
(`GapAwareSink.record_gap`).
"""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from waltap.base.files.durable_file import StateDocument
from waltap.changes.decode.relation import Relation
from waltap.errors import RetryVerdict, SourceError, WaltapError
from waltap.ports.offsets.offset import Offset
from waltap.ports.source.connector import Connector
from waltap.ports.source.roles import PublishingSource, published_by, tables_of

log = logging.getLogger(__name__)

STAYS: Final = (
    "A destination with tables still has rows that the source deleted, or gave another key, in between; "
    "one run with snapshot.mode=always replaces all rows"
)

MESSAGES: Final = {
    "waits": "table %s is captured from now on; its rows are read once the transactions have ended that "
    "were writing to it when it was published",
    "locked": "table %s is new: it is captured once the transactions have ended that are writing to it",
    "created": "table %s is new: it is captured from its creation on",
    "joined": "table %s is new since the last start: it is captured from its creation on",
    "snapshot": "table %s is captured from now on; an incremental snapshot reads its rows",
    "incomplete": "table %s is captured from now on; rows and changes from before are missing. To have "
    "them, run: waltap snapshot FILE '%s' (without a key: --blocking)",
    "snapshot again": "table %s was captured before, and is captured again after an interruption; an "
    "incremental snapshot reads its rows. " + STAYS,
    "incomplete again": "table %s was captured before, and is captured again after an interruption; rows "
    "and changes in between are missing. To read the rows, run: waltap snapshot FILE '%s' (without a key: "
    "--blocking). " + STAYS,
    "uncaptured": "table %s is new and not captured: it joins at the next start of this pipeline; "
    "changes until then are not delivered",
    "interrupted": "the server no longer streams all changes of table %s, since its publication was "
    "changed or dropped; the next start corrects it where publication.autocreate.mode allows that, else "
    "run ALTER PUBLICATION ... ADD TABLE; changes until then are not delivered",
    "changed": "the publication of table %s was changed, and perhaps changed back: changes in between "
    "may be missing",
}
REFUSED: Final = (
    "table %s is new and not captured. %s. Until that is done, changes are not delivered, and a start may "
    "be refused; after it, `waltap tables add FILE '%s'` or a start captures the table"
)
RENAMED: Final = (
    "captured table %s is called %s now, which the profile does not capture: "
    "its changes are not delivered"
)
POLLS_PER_ANSWER: Final = 6
"""Looks between two questions about streamed tables, which take several queries."""

TABLES_CHECKED: Final = 20
"""New tables of a poll for which it looks whether a start would be refused: each look takes queries."""

QUIET: Final = frozenset({"created", "joined"})
"""Events after which nothing is missing."""

# Their publication was changed.
TablesNotStreamed = SourceError.define("TablesNotStreamed", "WT-2048", loses=True)


class _Joining(msgspec.Struct):
    """Hold a published table that is not read yet."""

    name: str
    # The transactions that may have written to it before; its rows are read after their end.
    writers: frozenset[str]
    again: bool


Ask = Callable[[Sequence[str]], Collection[str]]
"""Requests the rows of tables (schema.table); returns those of which that succeeded."""

Lost = Callable[[WaltapError, Sequence[str]], None]
"""Gets the error of a gap, and the names of its tables."""


class _KnownTables(msgspec.Struct):
    """Keep the tables of the last start, by identifier."""

    database: str
    captured: list[str]
    others: list[str]
    streamed_as: dict[str, list[str | None]] = {}
    left_out: list[str] = msgspec.field(default_factory=list, name="left")

    def interrupted(self, connector: Connector) -> set[str]:
        """Return captured tables that are not streamed wholly."""
        published = published_by(connector)
        with connector.once():
            changed = published.streamed_otherwise(self.streamed_as, published.streamed_as())
            return set((changed | published.unsent()).intersection(self.captured))


class NewTables:
    """Notice the new tables of one pipeline.

    ``policy`` is warn, snapshot or ignore; ``notify`` gets the table and the event (`on_new_table`).
    ``captured`` has the names of captured tables after `begin`. Disk errors are not raised: then fewer
    changes are noticed.
    """

    def __init__(
        self,
        path: Path,
        policy: str,
        captures: Callable[[str, str], bool],
        notify: Callable[[str, str], None],
    ) -> None:
        self._policy, self._captures, self._notify = policy, captures, notify
        # Without damage errors: then less is noticed.
        self._document = StateDocument(path, _KnownTables)
        self._known: _KnownTables | None = None
        self._names: dict[str, tuple[str, str]] = {}
        # The tables before the start made its publications.
        self._older: dict[str, tuple[str, str]] = {}
        self._captured: set[str] = set()
        self.captured: tuple[str, ...] = ()
        self._polls, self._interrupted = 0, set[str]()
        self._joining: dict[str, _Joining] = {}
        # New tables that could not be published yet.
        self._locked = set[str]()
        self._ask: Ask | None = None
        self._is_stored: Callable[[], bool] = lambda: True
        self._missed: Callable[[str], None] = lambda _name: None
        self._lost: Lost = lambda _error, _names: None
        self._unsaved = False

    def prepare(self, connector: Connector, lost: Lost) -> None:
        """Look for gaps before the connector prepares a start.

        The connector then repairs the publication. A table that was not streamed is no longer known as
        captured, even if this start is killed.
        """
        self._lost = lost
        self._older = tables_of(connector).existing_tables()
        before = self._document.load()
        gaps = before.interrupted(connector) if before is not None else set()
        if before is not None and gaps:
            self._warn_of_gaps(gaps, self._older)
            before.captured = sorted(set(before.captured) - gaps)
            before.others = sorted(gaps | set(before.others))
            before.left_out = sorted(gaps | set(before.left_out))
            self._document.save(before)

    def start_over(self, connector: Connector, offset: Offset) -> None:
        """Record the captured tables of a fresh start and how they are streamed."""
        tables = tables_of(connector)
        with connector.once():
            self._names, captured = tables.existing_tables(), tables.captured_tables()
            streamed_as = _texts(published_by(connector).streamed_as())
        self._captured = set(captured)
        before = self._load(_database(offset))
        self._known = _KnownTables(_database(offset), [], [], streamed_as, _had(before))
        self._save()

    def begin(
        self,
        connector: Connector,
        offset: Offset,
        *,
        after_snapshot: bool,
        ask: Ask | None,
        is_stored: Callable[[], bool] = lambda: True,
        missed: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Look for new tables when streaming has begun.

        ``after_snapshot``: a snapshot has read every table. ``is_stored`` returns whether the requests
        of ``ask`` are stored. ``missed`` gets a table that was left out for a while. Raises: SinkError.
        """
        self._ask, self._is_stored, self._missed = ask, is_stored, missed
        database = _database(offset)
        before = self._load(database)
        tables, published = tables_of(connector), published_by(connector)
        with connector.once():
            captured, self._names = tables.captured_tables(), tables.existing_tables()
            streamed_as = _texts(published.streamed_as())
        self._captured = set(captured)
        self.captured = tuple(sorted(captured.values()))
        self._joining.clear()
        self._known = _KnownTables(database, [], [], streamed_as, _had(before))
        if before is not None and after_snapshot:
            # The stream has what came during the snapshot as it was published then.
            changed = published.streamed_otherwise(before.streamed_as, streamed_as)
            changed &= captured.keys()
            for identifier in sorted(changed):
                self._say("changed", captured[identifier])
            self._warn_of_gaps(changed, self._names)
        elif before is not None:
            known, others = set(before.captured), {*before.others, *before.streamed_as}
            with connector.once():
                for identifier, name in captured.items():
                    if identifier in known:
                        continue
                    table_id = self._names.get(identifier)
                    if identifier not in others and table_id and published.streams_new(*table_id):
                        self._say("joined", name)
                    else:
                        self._join(published, identifier, name)
            self._read_joining(published, captured)
        # Tables that came during the start, such as a long snapshot, are news to the first poll.
        for identifier, named in list(self._names.items()):
            if identifier not in captured and self._older.get(identifier) != named:
                del self._names[identifier]
                streamed_as.pop(identifier, None)
        self._unsaved = True
        self.save_known()

    def save_known(self) -> None:
        """Store the known tables, if requests for their rows are stored."""
        if self._unsaved and self._is_stored():
            self._save()

    def poll(self, connector: Connector) -> None:
        """Look for new tables while streaming.

        A database error is ignored here: the stream notices it.
        """
        if self._known is None:
            return
        self.save_known()
        tables, published = tables_of(connector), published_by(connector)
        with suppress(SourceError):
            present, older = tables.existing_tables(), self._known.streamed_as
            self._polls += 1
            if self._polls % POLLS_PER_ANSWER == 0:
                self._find_gaps(published, present)
                known = self._captured | self._joining.keys()
                for identifier, name in tables.captured_tables().items():
                    if identifier in self._names and identifier not in known:
                        self._join(published, identifier, name)
            self._read_joining(published, present)
            if present == self._names:
                return
            locked, unpublished = set[str](), 0
            for identifier, (schema, table) in present.items():
                if (named := self._names.get(identifier)) == (schema, table):
                    continue
                name = f"{schema}.{table}"
                if not self._captures(schema, table):
                    if identifier in self._captured and named and self._captures(*named):
                        log.warning(RENAMED, ".".join(named), name, extra={"table": name})
                    continue
                if identifier in self._captured:
                    continue
                streams_new = published.streams_new(schema, table)
                # One that was a partition streamed under its root's name.
                if streams_new and identifier not in self._names and identifier not in older:
                    self._say("created", name)
                    self._capture({identifier: name})
                # It has another name by now, or another session published it.
                elif streams_new or identifier in tables.captured_tables():
                    self._join(published, identifier, name)
                else:
                    unpublished += 1
                    check = unpublished <= TABLES_CHECKED
                    event = self._added(published, (schema, table), check=check)
                    if event == "locked":
                        locked.add(identifier)  # the next poll tries again
                        if identifier in self._locked:
                            continue
                    if event == "refused":
                        self._notify(name, "uncaptured")
                    elif event:
                        self._say(event, name)
                    else:
                        self._joining[identifier] = _Joining(name, frozenset(), again=False)
            self._locked = locked
            self._names = {i: name for i, name in present.items() if i not in locked}
            self._read_joining(published, present)
            if not self._unsaved:
                self._save()

    def returned(self, relation: Relation) -> None:
        """Have the next poll join a table in doubt.

        It had another name, which is not captured, or ambiguous columns. Its next change follows a
        gap already. Raises: SinkError.
        """
        if self._known is None:
            return
        self._missed(relation.name)
        identifier = str(relation.oid)
        self._captured.discard(identifier)
        self._known.left_out.append(identifier)
        self._names[identifier] = ("", "")
        self._unsaved = True
        # The run may end before the next poll.
        self.save_known()

    def _capture(self, tables: Mapping[str, str]) -> None:
        """Count tables, by identifier, as captured from now on."""
        assert self._known is not None
        self._captured.update(tables)
        for identifier in tables:
            # How it was streamed before it was captured is no gap.
            self._known.streamed_as.pop(identifier, None)
        self.captured = tuple(sorted({*self.captured, *tables.values()}))

    def _join(self, published: PublishingSource, identifier: str, name: str) -> None:
        """Add a published table whose older rows are missing. Raises: SinkError."""
        assert self._known is not None
        if again := identifier in self._known.left_out:
            self._missed(name)
        writers = published.writers(identifier) if self._policy == "snapshot" else frozenset()
        self._captured.discard(identifier)  # a start from here would find it to be new
        self._joining[identifier] = _Joining(name, writers, again)
        if writers:
            self._say("waits", name)

    def _read_joining(self, published: PublishingSource, present: Container[str]) -> None:
        """Request the rows of tables whose earlier writers have ended, and capture them."""
        for identifier, joining in list(self._joining.items()):
            if identifier not in present:
                del self._joining[identifier]
            elif joining.writers:
                joining.writers &= published.writers(identifier)
        ready = {i: joining for i, joining in self._joining.items() if not joining.writers}
        if not ready:
            return
        asked: Collection[str] = ()
        if self._policy == "snapshot" and self._ask is not None:
            asked = self._ask([joining.name for joining in ready.values()])
        self._capture({identifier: joining.name for identifier, joining in ready.items()})
        self._unsaved = True
        for identifier, joining in ready.items():
            del self._joining[identifier]
            event = "snapshot" if joining.name in asked else "incomplete"
            self._say(event, joining.name, again=joining.again)

    def _added(self, published: PublishingSource, table_id: tuple[str, str], *, check: bool) -> str:
        """Publish a table that the next start would publish; return why not.

        Where it is left to a start, ``check`` whether that would be refused.
        """
        if self._policy == "ignore" or not published.adds_tables():
            return "uncaptured"
        try:
            if self._policy != "snapshot":
                if check:
                    published.check_publishable([table_id])
                return "uncaptured"
            changed = published.publish([table_id], wanted=True, briefly=True)
            if changed is None:
                return "locked"
            if table_id not in changed:
                return "uncaptured"
        except WaltapError as error:
            if error.retry is not RetryVerdict.NEVER:
                raise
            name = ".".join(table_id)
            extra = {"table": name, "error_code": error.code}
            log.warning(REFUSED, name, error, name, extra=extra)
            return "refused"
        return ""

    def _find_gaps(self, published: PublishingSource, present: dict[str, tuple[str, str]]) -> None:
        """Report tables whose changes are no longer streamed.

        A server from PostgreSQL 18 on only logs a missing publication, and leaves its changes out.
        """
        assert self._known is not None
        gaps = self._captured & published.unsent() & present.keys()
        for identifier in sorted(gaps - self._interrupted):
            self._say("interrupted", ".".join(present[identifier]))
        now = published.streamed_as()
        changed = published.streamed_otherwise(self._known.streamed_as, now)
        changed = (changed & self._captured & present.keys()) - gaps
        for identifier in sorted(changed):
            self._say("changed", ".".join(present[identifier]))
        if new := changed | (gaps - self._interrupted):
            self._warn_of_gaps(new, present)
        self._interrupted = gaps
        self._known.streamed_as = {**self._known.streamed_as, **_texts(now)}

    def _warn_of_gaps(self, gaps: Iterable[str], present: Mapping[str, tuple[str, str]]) -> None:
        names = sorted(
            ".".join(present[identifier]) for identifier in gaps if identifier in present
        )
        if names and self._policy != "ignore":
            text = f"not everything was streamed of {', '.join(names)}"
            self._lost(TablesNotStreamed(text), names)

    def unknown(self, connector: Connector, offset: Offset) -> list[str]:
        """Return the tables that are new to the next start."""
        before = self._load(_database(offset))
        if before is None or self._policy == "ignore":
            return []
        known = set(before.captured) - before.interrupted(connector)
        return sorted(
            n for i, n in tables_of(connector).captured_tables().items() if i not in known
        )

    def interrupted(self, connector: Connector, offset: Offset) -> list[str]:
        """Return captured tables that the server does not stream wholly now."""
        before = self._load(_database(offset))
        if before is None or self._policy == "ignore":
            return []
        known = before.interrupted(connector)
        return sorted(n for i, n in tables_of(connector).captured_tables().items() if i in known)

    def _say(self, event: str, name: str, *, again: bool = False) -> None:
        if self._policy == "ignore":
            return
        level = logging.INFO if event in QUIET else logging.WARNING
        text = MESSAGES[f"{event} again" if again else event]
        log.log(level, text, *[name] * text.count("%s"), extra={"table": name})
        if event not in {"waits", "locked"}:
            self._notify(name, event)

    def _load(self, database: str) -> _KnownTables | None:
        known = self._document.load()
        return known if known is not None and known.database == database else None

    def _save(self) -> None:
        assert self._known is not None
        self._unsaved = False
        self._known.captured = sorted(self._captured)
        others = set(self._names) - self._captured
        self._known.others = sorted(others)
        self._known.left_out = sorted(others.intersection(self._known.left_out))
        self._document.save(self._known)


def _had(before: _KnownTables | None) -> list[str]:
    """Return the tables that were captured once."""
    return [] if before is None else [*before.captured, *before.left_out]


def _texts(streamed_as: Mapping[str, Sequence[str | None]]) -> dict[str, list[str | None]]:
    return {identifier: list(texts) for identifier, texts in streamed_as.items()}


def _database(offset: Offset) -> str:
    return f"{offset.first.system_id}/{offset.first.database}"
