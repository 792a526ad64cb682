"""Answers of the scripted server to queries: the given ones, then those of any walsender."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from waltap.source.position import lsn_text
from waltap_testing.walsender.script import ServerError

__all__ = ["Answer", "AnswerBook", "CommandAnswer", "CopyOut", "ReceivedQuery", "RowsAnswer"]

TEXT, INT4, INT8 = 25, 23, 20


@dataclass(frozen=True, slots=True)
class ReceivedQuery:
    """One query; ``parameters`` are the values bound by the extended protocol, bytes where they came
    in binary form, and ``types`` their type OIDs (0: not said)."""

    text: str
    parameters: tuple[str | bytes | None, ...] = ()
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """A result: columns as names or (name, type OID), rows of texts (None: NULL)."""

    columns: Sequence[str | tuple[str, int]]
    rows: Sequence[Sequence[str | None]] = ()

    def described(self) -> list[tuple[str, int]]:
        """Return the columns with their type OIDs; text where none was given."""
        return [(c, TEXT) if isinstance(c, str) else c for c in self.columns]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """A command that gives no rows."""

    tag: str


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The result of ``COPY … TO STDOUT``: chunks as the server would send them, one per row."""

    chunks: Sequence[bytes]
    columns: int = 1


Answer = RowsAnswer | CommandAnswer | CopyOut | ServerError
Answering = Answer | Sequence[Answer | None] | Callable[[ReceivedQuery], Answer]
"""An answer; or several, given in turn, the last for ever (None: what a walsender does); or a
function of the query."""


@dataclass(slots=True)
class AnswerBook:
    """What the server answers.

    ``given`` maps regular expressions (searched in the query, case ignored, first one wins) to
    answers. ``settings`` are what SHOW knows.
    """

    given: Mapping[str, Answering]
    settings: Mapping[str, str]
    system_id: str
    timeline: int
    database: str
    wal_end: int
    _used: dict[str, int] = field(default_factory=dict)

    def find(self, query: ReceivedQuery) -> Answer | None:
        """Return the given answer, else a walsender's own; None: nobody knows."""
        answer = self.scripted(query)
        return self._own(query.text.strip().rstrip(";")) if answer is None else answer

    def scripted(self, query: ReceivedQuery) -> Answer | None:
        """Return the given answer, None when there is none for this query, or not this time."""
        for pattern, answering in self.given.items():
            if re.search(pattern, query.text, re.IGNORECASE | re.DOTALL):
                if isinstance(answering, Sequence):
                    turn = self._used.get(pattern, 0)
                    self._used[pattern] = turn + 1
                    return answering[min(turn, len(answering) - 1)]
                return answering(query) if callable(answering) else answering
        return None

    def _own(self, text: str) -> Answer | None:
        words = text.split()
        match [word.upper() for word in words[:1]]:
            case ["IDENTIFY_SYSTEM"]:
                columns = [("systemid", TEXT), ("timeline", INT8), ("xlogpos", TEXT)]
                row = [self.system_id, str(self.timeline), lsn_text(self.wal_end), self.database]
                return RowsAnswer([*columns, ("dbname", TEXT)], [row])
            case ["SHOW"] if len(words) == 2:
                name = words[1].lower()
                if name in self.settings:
                    return RowsAnswer([name], [[self.settings[name]]])
                return ServerError("42704", f'unrecognized configuration parameter "{name}"')
            case ["CREATE_REPLICATION_SLOT"]:
                return self._slot(text)
            case ["DROP_REPLICATION_SLOT"]:
                return CommandAnswer("DROP_REPLICATION_SLOT")
            case [("BEGIN" | "COMMIT" | "ROLLBACK" | "SET") as word]:
                return CommandAnswer(word)
        return None

    def _slot(self, text: str) -> Answer:
        found = re.match(
            r'CREATE_REPLICATION_SLOT\s+("?)(\w+)\1\s+(?:TEMPORARY\s+)?LOGICAL\s+("?)(\w+)\3(.*)',
            text,
            re.IGNORECASE | re.DOTALL,
        )
        if found is None:
            return ServerError("42601", "syntax error")
        name, plugin, options = found[2], found[4], found[5]
        exports = not re.search(r"'(nothing|use)'|NOEXPORT|USE_SNAPSHOT", options, re.IGNORECASE)
        columns = ["slot_name", "consistent_point", "snapshot_name", "output_plugin"]
        snapshot = "00000003-00000001-1" if exports else None
        return RowsAnswer(columns, [[name, lsn_text(self.wal_end), snapshot, plugin]])
