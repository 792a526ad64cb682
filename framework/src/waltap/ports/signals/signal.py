"""Define signals, and parse Debezium's into snapshot requests. Sans-IO.

Signals are untrusted input. Parsing has a limit of size and of time, and ends in a request or in
`SignalUnusable`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import msgspec
import orjson

from waltap.changes.capture.java_regex import python_syntax
from waltap.changes.decode.relation import schema_and_table
from waltap.errors import SnapshotError


class SignalUnusable(ValueError):
    """The engine cannot act on a signal; the text says why.

    The engine logs it as WT-4101 and ignores the signal. Actions of plugins raise it too.
    """


SignalIgnored = SnapshotError.define("SignalIgnored", "WT-4101")
TableNotRead = SnapshotError.define("TableNotRead", "WT-4102")
SignalTableUnusable = SnapshotError.define("SignalTableUnusable", "WT-4103")

# Such an entry can only match itself: it is a name with all that is special escaped, or its one dot is the
# dot of the name.
PLAIN = re.compile(r"(?:\w|\\\W)+|\w+\.\w+")
ESCAPED = re.compile(r"\\(.)", re.DOTALL)

LONGEST = 10_000
"""Most characters of one pattern."""


class NamePatterns:
    """Match the patterns of one signal.

    All patterns together may take ``seconds`` of ``clock``. The clock counts the processor time of
    the thread, so that a busy machine does not shorten the limit.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._end = clock() + seconds
        self._compiled: dict[tuple[str, bool], Any] = {}

    def matching(
        self, text: str, known: Mapping[str, object] | Iterable[str], *, case_sensitive: bool = True
    ) -> list[str]:
        """Return the names that the pattern ``text`` matches whole.

        They keep the order of ``known``. An invalid pattern matches nothing. Raises: SignalUnusable.
        """
        plain = case_sensitive and isinstance(known, Mapping) and len(text) <= LONGEST
        if plain and PLAIN.fullmatch(text):
            name = ESCAPED.sub(r"\1", text)
            return [name] if name in known else []
        pattern = self._pattern(text, case_sensitive=case_sensitive)
        if pattern is None:
            return []
        return [name for name in known if self._fits(pattern, name, text)]

    def _fits(self, pattern: Any, name: str, text: str) -> bool:
        while True:
            remaining = max(self._end - self._clock(), 0.000_001)
            try:
                return pattern.fullmatch(name, timeout=remaining) is not None
            except TimeoutError as error:
                if self._clock() < self._end:
                    # the package also counts the work of the process's other threads
                    continue
                raise SignalUnusable(
                    f"its patterns take longer than {self._seconds:g} s of a processor to match; "
                    f"they were given up at {text[:100]!r}"
                ) from error

    def readable(self, text: str) -> bool:
        """Return whether ``text`` is a regular expression.

        Raises: SignalUnusable.
        """
        return self._pattern(text, case_sensitive=True) is not None

    def _pattern(self, text: str, *, case_sensitive: bool) -> Any:
        # A pattern can take exponentially long on one name. Unlike `re`, `regex` has a time-out.
        import regex

        key = (text, case_sensitive)
        if key not in self._compiled:
            if len(text) > LONGEST:
                raise SignalUnusable(f"a pattern is longer than {LONGEST} characters")
            flags = 0 if case_sensitive else regex.IGNORECASE
            try:
                self._compiled[key] = regex.compile(python_syntax(text), flags)
            except (regex.error, OverflowError, ValueError):
                self._compiled[key] = None
            except RecursionError as error:
                raise SignalUnusable("a pattern is nested too deep") from error
        return self._compiled[key]


class PartlyIgnored(str):
    """Say why a part of an accepted signal is ignored."""

    __slots__ = ()


Action = Callable[[int], str | None]
"""Acts on a signal at a time in µs since 1970 UTC; returns why it failed, None or "" if it did not."""

KNOWN = {
    "execute-snapshot": {
        "data-collections",
        "type",
        "additional-conditions",
        "additional-condition",
        "surrogate-key",
    },
    "stop-snapshot": {"data-collections", "type"},
    "pause-snapshot": {"type"},
    "resume-snapshot": {"type"},
    "log": {"message"},
}
"""Type of signal → the members that its data may have."""

SNAPSHOTS = frozenset(KNOWN) - {"log"}
"""Types of signals about snapshots."""


class Signal(msgspec.Struct, frozen=True):
    """One signal as its sender wrote it."""

    identifier: str
    # Debezium's type, such as ``execute-snapshot``
    kind: str
    # JSON text, not parsed yet
    data: str

    @property
    def fingerprint(self) -> str:
        """Return a short text that other signals do not have."""
        text = f"{self.identifier}\0{self.kind}\0{self.data}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def arguments(self, max_bytes: int) -> dict[str, object]:
        """Return the data as an object, ``{}`` for empty data.

        Raises: SignalUnusable.
        """
        if len(self.data) > max_bytes or len(self.data.encode(errors="replace")) > max_bytes:
            raise SignalUnusable(
                f"data of signal {self.identifier!r} is larger than {max_bytes} bytes, "
                "the limit that waltap.signal.max.bytes sets"
            )
        if not self.data.strip():
            return {}
        try:
            # orjson refuses deep nesting and lone surrogates
            value = orjson.loads(self.data)
        except ValueError as error:
            raise SignalUnusable(
                f"data of signal {self.identifier!r} is not JSON: {error}"
            ) from error
        if not isinstance(value, dict):
            raise SignalUnusable(f"data of signal {self.identifier!r} is not a JSON object")
        if "\\u0000" in self.data:
            raise SignalUnusable(f"data of signal {self.identifier!r} has a NUL character")
        return value

    def unknown(self, arguments: dict[str, object]) -> list[str]:
        """Return the members that this type of signal does not know."""
        known = KNOWN.get(self.kind)
        return [] if known is None else sorted(set(arguments) - known)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCall:
    """One signal for an action, and access to its pipeline."""

    pipeline: str
    signal: Signal
    # the parsed data: untrusted content of at most ``waltap.signal.max.bytes``
    arguments: Mapping[str, object]
    # the last delivered position as text
    position: str
    # sends a notification (kind, members) with the signal's id; the aggregate type is its type
    notify: Callable[..., None]
    # stops the pipeline as `Engine.stop` does
    stop: Callable[[], None]


class SignalChannel(Protocol):
    """A source of signals, made by a `SignalChannelSpec`.

    The engine's thread polls it between batches, every ``signal.poll.interval.ms``.
    """

    def poll(self) -> list[Signal] | None:
        """Return the new signals in order, without waiting; None while it cannot look.

        Each signal comes once, so that a crash may lose it; in a `ConfirmedChannel` until it is
        confirmed. The channel logs and skips invalid signals, because a misspelled signal must not stop
        a pipeline. Raises: WaltapError when the channel itself is gone.
        """

    def close(self) -> None:
        """Release resources; may be called twice."""


@runtime_checkable
class ConfirmedChannel(Protocol):
    """A signal channel that repeats signals after a crash."""

    def confirm(self) -> None:
        """Forget the signals of the last poll: waltap has acted on them and stored them.

        The engine polls again after that. Raises: any error; then the engine calls again.
        """


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One table that a signal asks the pipeline to read."""

    schema: str
    table: str
    # id of the signal
    signal: str
    # a predicate; with ``blocking`` a SELECT of the rows
    condition: str | None = None
    # column that orders and divides the rows instead of the key
    surrogate_key: str | None = None
    # read the whole table at once, instead of in chunks beside the stream
    blocking: bool = False
    # `Relation.oid` of the table that had the name when the signal came; 0: not known
    oid: int = 0

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"


def names(arguments: dict[str, object]) -> list[str]:
    """Return the ``data-collections`` of a signal. Raises: SignalUnusable."""
    given = _given(arguments, "data-collections", [])
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise SignalUnusable("data-collections must be a list of schema.table patterns")
    return [str(entry).strip() for entry in given]


def _given(arguments: dict[str, object], name: str, default: object) -> object:
    """Return a member of a signal's data, ``default`` for a null one."""
    value = arguments.get(name)
    return default if value is None else value


def requests(
    signal: Signal,
    arguments: dict[str, object],
    known: Iterable[tuple[str, str]],
    patterns: NamePatterns,
) -> list[SnapshotRequest]:
    """Return the requests of an ``execute-snapshot`` signal.

    Each table comes once, in the signal's order. Entries are case-sensitive regular expressions that
    must match a whole ``schema.table`` of ``known``. An entry without a match is a literal name.
    Raises: SignalUnusable.
    """
    kind = str(_given(arguments, "type", "incremental")).lower()
    if kind not in {"incremental", "blocking"}:
        raise SignalUnusable(
            f"snapshot type {kind[:100]!r} is not known; known are incremental, blocking"
        )
    conditions = _conditions(arguments)
    surrogate = arguments.get("surrogate-key")
    if surrogate is not None and not isinstance(surrogate, str):
        raise SignalUnusable("surrogate-key must be the name of a column")
    tables = {".".join(table): table for table in known}
    found: dict[tuple[str, str], None] = {}
    for entry in names(arguments):
        literal = schema_and_table(entry)
        if literal is not None and literal in found:
            continue
        matches = [tables[name] for name in patterns.matching(entry, tables)]
        if not matches and literal is not None:
            matches = [literal]
        found.update(dict.fromkeys(matches))
    return [
        SnapshotRequest(
            schema=schema,
            table=table,
            signal=signal.identifier,
            condition=_condition((schema, table), conditions, patterns),
            surrogate_key=surrogate if surrogate and surrogate.strip() else None,
            blocking=kind == "blocking",
        )
        for schema, table in found
    ]


def _conditions(arguments: dict[str, object]) -> list[tuple[str | None, str]]:
    """Return (pattern of tables, predicate) pairs.

    The pattern None is for every table.
    """
    given = _given(arguments, "additional-conditions", [])
    if not isinstance(given, list):
        raise SignalUnusable("additional-conditions must be a list")
    conditions: list[tuple[str | None, str]] = []
    for entry in given:
        if not isinstance(entry, dict) or not isinstance(entry.get("data-collection"), str):
            raise SignalUnusable("an additional condition needs data-collection and filter")
        predicate = entry.get("filter", "")
        if not isinstance(predicate, str):
            raise SignalUnusable("the filter of an additional condition must be a string")
        conditions.append((entry["data-collection"], predicate))
    alone = arguments.get("additional-condition")
    if alone is None:
        return conditions
    if conditions:
        raise SignalUnusable("give additional-conditions or additional-condition, not both")
    if not isinstance(alone, str):
        raise SignalUnusable("additional-condition must be a string")
    return [(None, alone)]


def _condition(
    table: tuple[str, str], conditions: list[tuple[str | None, str]], patterns: NamePatterns
) -> str | None:
    name = ".".join(table)
    for entry, predicate in conditions:
        fits = (
            entry is None
            or entry == name
            or schema_and_table(entry) == table
            or patterns.matching(entry, (name,), case_sensitive=False)
        )
        if fits:
            return predicate.strip() or None
    return None
