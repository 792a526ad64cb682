"""The decoderbufs decoder.

Source: decoderbufs.c and its README; recorded output of version 2.1.2.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from waltap.base.cache import BoundedDict
from waltap.changes.decode.decoder import Decoder, DecoderContext, Frame, codec_of
from waltap.changes.decode.message import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    OldTuple,
    Update,
    skip,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value
from waltap_decoders.capabilities import DECODERBUFS
from waltap_decoders.decoderbufs.datums import DatumKind, datum_kind, typmod
from waltap_decoders.decoderbufs.row_message_pb2 import (
    BEGIN,
    COMMIT,
    INSERT,
    UPDATE,
    DatumMessage,
    RowMessage,
)
from waltap_decoders.decoderbufs.row_messages import examine, fail, is_text, read
from waltap_decoders.named_relations import MAX_NAMES, NamedRelations, RowMakeUp, RowPlan, RowPlans
from waltap_decoders.row_facts import ColumnFact, OldRowColumns, RowFacts

_QUOTED = re.compile(r'"((?:[^"]|"")+)"').fullmatch
_PAIR = re.compile(r'("(?:[^"]|"")+"|[^".]+)\.("(?:[^"]|"")+"|[^".]+)').fullmatch


def unquoted(identifier: str) -> str:
    """Return the name that an identifier denotes. Raises: ValueError."""
    quoted = _QUOTED(identifier)
    if quoted:
        return quoted[1].replace('""', '"')
    if not identifier or '"' in identifier:
        raise ValueError("an identifier, quoted or plain")
    return identifier


def unquoted_pair(identifier: str) -> tuple[str, str]:
    """Return schema and name of a qualified identifier. Raises: ValueError."""
    pair = _PAIR(identifier)
    if pair is None:
        raise ValueError("schema.table, each quoted or plain")
    return unquoted(pair[1]), unquoted(pair[2])


_KINDS = {INSERT: "I", UPDATE: "U"}


class DecoderBufs(Decoder):
    """Decode decoderbufs.

    The state belongs to one session, and a DecodeError ends that session.
    """

    name = "decoderbufs"
    capabilities = DECODERBUFS

    def __init__(self, context: DecoderContext) -> None:
        self._codec = codec_of(context.server.encoding)
        self._relations = NamedRelations(context)
        self._plans = RowPlans[DatumKind](self._relations)
        self._tables = BoundedDict[str, tuple[str, str]](MAX_NAMES)
        self._begin: Begin | None = None

    def start_options(self) -> dict[str, str]:
        return {}

    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        messages: list[Message] = []
        for frame in frames:
            self._take(frame, read(frame, self._codec), messages)
        self._relations.pause(messages)
        return messages

    def _take(self, frame: Frame, message: RowMessage, messages: list[Message]) -> None:
        op, xid, begin = message.op, message.transaction_id, self._begin
        if op in (BEGIN, COMMIT):
            if message.new_tuple or message.old_tuple or message.table:
                fail(frame, "no table and no tuples in BEGIN and COMMIT", "some")
            if (begin is None) != (op == BEGIN):
                fail(frame, "BEGIN and COMMIT by turns", "BEGIN" if op == BEGIN else "COMMIT")
        elif begin is None:
            fail(frame, "BEGIN first", "a row")
        if begin is not None and xid != begin.xid:
            fail(frame, f"transaction_id {begin.xid} as in BEGIN", str(xid))
        if op == BEGIN:
            self._begin = Begin(frame[0], xid, 0, message.commit_time)
            self._plans.began(xid, frame[0])
            messages.append(self._begin)
        elif op == COMMIT:
            if begin is not None:
                self._relations.commit(begin, messages)
            messages.append(Commit(frame[0], 0, frame[0], message.commit_time, xid))
            self._begin = None
        else:
            self._row(frame, message, messages)

    def _row(self, frame: Frame, message: RowMessage, messages: list[Message]) -> None:
        op = message.op
        schema, table = self._table(frame, message.table)
        if not self._relations.captured(schema, table):
            skip(messages)
            return
        new, old, info = message.new_tuple, message.old_tuple, message.new_typeinfo
        if len(new) != len(info):
            hint = " (a plugin before 1.0 sends none)" if not info else ""
            fail(frame, f"{len(new)} new_typeinfo, as many as new_tuple", f"{len(info)}{hint}")
        if op == INSERT and old:
            fail(frame, "new_tuple alone in INSERT", "others")
        if op not in (INSERT, UPDATE) and new:
            fail(frame, "no new_tuple in DELETE", "some")
        # A table without columns sends an INSERT without a tuple.
        if op == INSERT and not new:
            self._empty_row(frame, schema, table, messages)
            return
        if not new and not old:
            self._unknown_row(frame, schema, table, op, messages)
            return
        key = (
            _KINDS.get(op, "D"),
            schema,
            table,
            tuple([(datum.column_name, datum.column_type) for datum in new]),
            tuple([(kind.modifier, kind.value_optional) for kind in info]),
            tuple([(datum.column_name, datum.column_type) for datum in old]),
        )
        plan = self._plans.get(key)
        shown = _values(frame, old, plan.old) if old and plan else []
        # Old rows look alike under a key and under FULL. A value that contradicts the plan shows
        # that the replica identity changed.
        if plan is None or (old and not plan.layout.holds(shown)):
            plan = self._new_plan(frame, key, message)
            if plan is None:
                skip(messages)
                return
            shown = _values(frame, old, plan.old)
        after: Tuple = ()
        if new:
            after = plan.layout.new_tuple(_values(frame, new, plan.new))
            # A full old row has every untouched value. If one is NULL there, the old row is a key.
            if plan.layout.old_kind is OldTuple.FULL and _lacks(
                plan.layout.old_tuple(shown), after
            ):
                plan = self._new_plan(frame, key, message) or plan
                after = plan.layout.new_tuple(_values(frame, new, plan.new))
        relation = plan.layout.relation
        self._plans.show(relation, messages)
        lsn = frame[0]
        if op == INSERT:
            # Check only rows that lack a value, so that complete rows pay nothing.
            if None in after or UNCHANGED in after:
                _identified(frame, relation, after, message)
            messages.append(Insert(relation, lsn, after))
            return
        before: Tuple = ()
        if old:
            before = plan.layout.old_tuple(shown)
            if not relation.oid:  # a table that the catalogue does not know has no known key
                before = tuple([ABSENT if value is None else value for value in before])
        if op == UPDATE:
            if not new:
                fail(frame, "new_tuple in UPDATE", "old_tuple alone")
            messages.append(Update(relation, lsn, after, before, plan.layout.old_kind))
        else:
            messages.append(Delete(relation, lsn, before, plan.layout.old_kind))

    def _empty_row(self, frame: Frame, schema: str, table: str, messages: list[Message]) -> None:
        """Decode an insert into a table that has no columns."""
        relation = self._relations.relation(schema, table)
        if relation is None:
            skip(messages)
            return
        if relation.columns or not relation.oid:
            fail(frame, "new_tuple alone in INSERT", "none")
        self._plans.show(relation, messages)
        messages.append(Insert(relation, frame[0], ()))

    def _unknown_row(
        self, frame: Frame, schema: str, table: str, op: int, messages: list[Message]
    ) -> None:
        """Decode an update or delete without any tuple.

        The table has no replica identity, so the row is unknown. A delete is still delivered. An
        update has no new values either and is only counted as skipped.
        """
        if op == UPDATE:
            skip(messages)
            return
        relation = self._relations.relation(schema, table)
        if relation is None:
            skip(messages)
            return
        self._plans.show(relation, messages)
        messages.append(Delete(relation, frame[0], (), OldTuple.NONE))

    def _new_plan(
        self, frame: Frame, key: RowMakeUp, message: RowMessage
    ) -> RowPlan[DatumKind] | None:
        """Compile and store the plan of rows like this one.

        Return None if the rows belong to a materialized view.
        """
        kind, schema, table, *_ = key
        info = [
            (is_text(frame, kind.modifier), kind.value_optional) for kind in message.new_typeinfo
        ]
        new = self._facts(frame, message.new_tuple, info)
        old = self._facts(frame, message.old_tuple, None)
        shown = [
            f.name for f, d in zip(old, message.old_tuple, strict=True) if d.WhichOneof("datum")
        ]
        key_columns = {
            f.name
            for f, d in zip(new, message.new_tuple, strict=True)
            if d.WhichOneof("datum") == "datum_missing"
        }
        row = RowFacts(
            kind,
            new,
            old,
            OldRowColumns.ALL,
            frozenset(shown),
            # A full old row has a value for every column that the change left unchanged out of
            # line, so a missing one proves a key.
            by_key=bool(old) and not key_columns.issubset(shown),
            only_nulls=bool(old) and not shown,
        )
        layout = self._relations.layout(schema, table, row)
        if layout is None:
            return None
        return self._plans.add(
            key,
            layout,
            (datum_kind(fact.type_oid) for fact in new),
            (datum_kind(fact.type_oid) for fact in old),
        )

    def _facts(
        self,
        frame: Frame,
        datums: Iterable[DatumMessage],
        info: list[tuple[str, bool]] | None,
    ) -> tuple[ColumnFact, ...]:
        facts: dict[str, ColumnFact] = {}
        for number, datum in enumerate(datums):
            written = is_text(frame, datum.column_name)
            try:
                name = unquoted(written)
            except ValueError as error:
                fail(frame, str(error), repr(written), written.encode())
            oid = datum.column_type
            if name in facts:
                fail(frame, "each column once", f"column {name!r} again", name.encode())
            if not 0 < oid < 1 << 32:
                fail(frame, f"a type OID of column {name!r}", str(oid), name.encode())
            modifier, nullable = info[number] if info else (None, None)
            mod = None if modifier is None else typmod(oid, modifier)
            facts[name] = ColumnFact(name, oid, mod, nullable)
        return tuple(facts.values())

    def _table(self, frame: Frame, text: str) -> tuple[str, str]:
        known = self._tables.get(text)
        if known is None:
            try:
                known = self._tables[text] = unquoted_pair(is_text(frame, text))
            except ValueError as error:
                fail(frame, str(error), repr(text), text.encode())
        return known


def _identified(frame: Frame, relation: Relation, after: Tuple, message: RowMessage) -> None:
    """Check that a new row has its identifying values.

    A NULL is accepted where the plugin says that the column allows it.
    """
    columns = zip(relation.columns, after, message.new_typeinfo, strict=True)
    for column, value, kind in columns:
        missing = value is UNCHANGED or (value is None and not kind.value_optional)
        if missing and column.in_identity:
            fail(
                frame,
                f"a value of column {column.name!r}, which identifies the new row",
                "none" if value is None else "the tag of one that did not change",
                column.name.encode(),
            )


def _lacks(before: Tuple, after: Tuple) -> bool:
    """Return whether an unchanged value is NULL in the old row.

    A full old row has every such value, so a NULL shows that the row is not full.
    """
    if UNCHANGED not in after:
        return False
    return any(new is UNCHANGED and old is None for old, new in zip(before, after, strict=True))


def _values(
    frame: Frame, datums: Iterable[DatumMessage], kinds: tuple[DatumKind, ...]
) -> list[Value]:
    """Return the values of a row's columns as text."""
    values: list[Value] = []
    for datum, kind in zip(datums, kinds, strict=True):
        member: Any = datum.WhichOneof("datum")
        if member == kind.member:
            try:
                values.append(kind.text(getattr(datum, member)))
            except ValueError as error:
                # The wire may be damaged; then its first fault explains more than this value.
                examine(frame)
                name = is_text(frame, datum.column_name)
                fail(frame, f"column {name}: {error}", "another value", name.encode())
        elif member is None:
            values.append(None)
        elif member == "datum_missing" and datum.datum_missing:
            values.append(UNCHANGED)
        else:
            name = datum.column_name
            expected = f"column {name} of type {datum.column_type} as {kind.member}"
            fail(frame, expected, str(member), name.encode())
    return values
