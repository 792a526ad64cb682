"""Answers of the scripted server to queries.

The test's own answers come first, then the replies of any walsender.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from waltap.changes.transactions.position import lsn_text
from waltap_testing.walsender.script import ServerError

__all__ = ["Answer", "AnswerBook", "CommandAnswer", "CopyOut", "ReceivedQuery", "RowsAnswer"]

TEXT, INT4, INT8 = 25, 23, 20


@dataclass(frozen=True, slots=True)
class ReceivedQuery:
    """One query that the client sent."""

    text: str
    # Values bound by the extended protocol; bytes where the client sent the binary form.
    parameters: tuple[str | bytes | None, ...] = ()
    # Type OIDs of the parameters; 0 where the client left the type to the server.
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """A result set."""

    # Names, or (name, type OID).
    columns: Sequence[str | tuple[str, int]]
    # Values as text; None is NULL.
    rows: Sequence[Sequence[str | None]] = ()

    def described(self) -> list[tuple[str, int]]:
        """Return the columns with type OIDs; the default type is text."""
        return [(c, TEXT) if isinstance(c, str) else c for c in self.columns]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The result of a command that returns no rows."""

    tag: str


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The result of ``COPY … TO STDOUT``: one chunk per row."""

    chunks: Sequence[bytes]
    columns: int = 1


Answer = RowsAnswer | CommandAnswer | CopyOut | ServerError
Answering = Answer | Sequence[Answer | None] | Callable[[ReceivedQuery], Answer]
"""An answer, several answers, or a function of the query.

Several answers are used in turn, and the last one repeats. None in the list means the walsender's
own reply.
"""


@dataclass(slots=True)
class AnswerBook:
    """The server's answers to queries."""

    # Regular expression → answer. The server searches the query, ignores case, and uses the first
    # match.
    given: Mapping[str, Answering]
    # Parameter → value, for SHOW.
    settings: Mapping[str, str]
    system_id: str
    timeline: int
    database: str
    wal_end: int
    # How often each pattern was answered, for answers given in turn.
    _used: dict[str, int] = field(default_factory=dict)

    def find(self, query: ReceivedQuery) -> Answer | None:
        """Return the test's answer, else the walsender's; None: unknown query."""
        answer = self.scripted(query)
        return self._own(query.text.strip().rstrip(";")) if answer is None else answer

    def scripted(self, query: ReceivedQuery) -> Answer | None:
        """Return the test's answer to ``query``, or None."""
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
        # The client reads the snapshot's name from this row; without an export the column is NULL.
        exports = not re.search(r"'(nothing|use)'|NOEXPORT|USE_SNAPSHOT", options, re.IGNORECASE)
        columns = ["slot_name", "consistent_point", "snapshot_name", "output_plugin"]
        snapshot = "00000003-00000001-1" if exports else None
        return RowsAnswer(columns, [[name, lsn_text(self.wal_end), snapshot, plugin]])
