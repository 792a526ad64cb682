"""Decodes ``test_decoding``: each frame is one line of text, and one message."""

import re
from collections.abc import Sequence
from datetime import datetime

from waltap.changes.decode import (
    Begin,
    Commit,
    Decoder,
    DecoderCapabilities,
    DecoderContext,
    Delete,
    Frame,
    Insert,
    LogicalMessage,
    Message,
    OldTuple,
    Truncate,
    Update,
)
from waltap.errors import DecodeError
from waltap_testdecoding import grammar
from waltap_testdecoding.grammar import Pairs, Unexpected, bare
from waltap_testdecoding.relations import Relations, old_tuple
from waltap_testdecoding.properties import TestDecodingProperties

# [session]
CAPABILITIES = DecoderCapabilities(truncate=True, logical_messages=True)


class TestDecoding(Decoder):
    """One session of test_decoding."""

    __test__ = False
    name = "test_decoding"
    capabilities = CAPABILITIES

    def __init__(self, context: DecoderContext) -> None:
        properties = TestDecodingProperties.model_validate(dict(context.options))
        self._options = {"include-xids": "1", "include-timestamp": "1"}
        self._options["skip-empty-xacts"] = str(int(properties.skip_empty))
        self._relations = Relations(context)
        self._xid: int | None = None

    def start_options(self) -> dict[str, str]:
        """Ask for xids and times, which events need."""
        return dict(self._options)

    def feed(self, frames: Sequence[Frame]) -> list[Message]:
        """Decode ``frames``: see `Decoder.feed`."""
        messages: list[Message] = []
        for lsn, data in frames:
            try:
                messages.append(self._message(lsn, data))
            except Unexpected as wrong:
                offset, expected, found = wrong.args
                raise DecodeError(
                    self.name, lsn=lsn, offset=offset, expected=expected, found=found, payload=data
                ) from None
        return messages

    # [/session]
    # [lines]
    def _message(self, lsn: int, data: bytes) -> Message:
        if head := grammar.MESSAGE.match(data):
            return self._logical(lsn, data, head)  # its content may be any bytes
        try:
            line = data.decode()
        except UnicodeDecodeError as cause:
            raise Unexpected(cause.start, "text in UTF-8", "other bytes") from cause
        for pattern, inside, read in (
            (grammar.CHANGE, True, self._change),
            (grammar.BEGIN, False, self._begin),
            (grammar.COMMIT, True, self._commit),
            (grammar.TRUNCATE, True, self._truncate),
        ):
            if found := pattern.match(line):
                self._check(inside)
                return read(lsn, found)
        raise Unexpected(0, "a line of test_decoding", repr(line[:20]))

    def _begin(self, lsn: int, found: re.Match[str]) -> Message:
        self._xid = int(found[1])
        self._relations.began(self._xid)
        return Begin(lsn, self._xid, 0, 0)

    def _commit(self, lsn: int, found: re.Match[str]) -> Message:
        if int(found[1]) != self._xid:
            raise Unexpected(7, f"transaction {self._xid}", found[1])
        try:
            time = round(datetime.fromisoformat(found[2]).timestamp() * 1_000_000)
        except (ValueError, OverflowError) as cause:
            raise Unexpected(found.start(2), "a time with its zone", found[2]) from cause
        self._xid = None
        return Commit(lsn, lsn, lsn, time, int(found[1]))  # this frame's LSN is the end LSN

    def _truncate(self, lsn: int, found: re.Match[str]) -> Message:
        tables = grammar.TABLE.finditer(found[1])
        relations = tuple(self._relations.latest(bare(one[1]), bare(one[2])) for one in tables)
        return Truncate(relations, lsn, bool(found[3]), bool(found[2]))

    def _logical(self, lsn: int, data: bytes, head: re.Match[bytes]) -> Message:
        transactional = head[1] == b"1"
        self._check(transactional)
        for size in grammar.CONTENT.finditer(data, head.end()):
            if len(data) - size.end() == int(size[1]):  # a prefix may look like the rest
                prefix = data[head.end() : size.start()].decode(errors="replace")
                return LogicalMessage(lsn, transactional, prefix, data[size.end() :])
        raise Unexpected(head.end(), "content of the size given", f"{len(data)} bytes in all")

    def _check(self, inside: bool) -> None:
        if inside == (self._xid is None):
            where = ("outside", "inside")
            raise Unexpected(0, f"this line {where[inside]} a transaction", where[not inside])

    # [/lines]
    # [rows]
    def _change(self, lsn: int, found: re.Match[str]) -> Message:
        schema, table, verb = bare(found[1]), bare(found[2]), found[3]
        line, at, before = found.string, found.end(), Pairs()
        if verb == "DELETE":
            if line[at:] == " (no-tuple-data)":
                return Delete(self._relations.latest(schema, table), lsn, (), OldTuple.NONE)
            pairs, _ = grammar.columns(line, at, "")
            relation = self._relations.latest(schema, table, pairs)
            return Delete(relation, lsn, *old_tuple(relation, pairs))
        if line.startswith(" old-key:", at):
            before, at = grammar.columns(line, at + len(" old-key:"), " new-tuple:")
        pairs, _ = grammar.columns(line, at, "")
        relation = self._relations.shape(schema, table, pairs)
        new = tuple(value for _, _, value in pairs)
        if verb == "INSERT":
            return Insert(relation, lsn, new)
        return Update(relation, lsn, new, *(old_tuple(relation, before) if before else ()))

    # [/rows]
