"""``waltap tail`` of a place that a plugin reads records from, such as a topic of Kafka."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from waltap.config.redaction import HIDDEN, hide, looks_secret, redacted
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
from waltap.extras import PLACES, SCHEMAS

if TYPE_CHECKING:
    from waltap.host import Host
    from waltap.reading.stored_record import RecordDecoder, RecordStream, StoredRecord

__all__ = ["is_place", "settings_of", "tail_records"]

STEP_S: Final = 0.25
WIDTH: Final = 60
REGISTRY: Final = "schema.registry.url"


def is_place(source: str) -> bool:
    """Tell whether ``source`` is a place of records rather than a database or a file.

    Raises: HookRaised.
    """
    from waltap.host import Host

    scheme, mark, _ = source.partition("://")
    if not mark or scheme.lower() in PLACES:
        return bool(mark)
    found = Host().choose("choose_record_stream", place=source, start="end", settings={})
    return found is not None


def settings_of(given: Sequence[str], registry: str | None) -> dict[str, str]:
    """Return the properties of ``--set`` and ``--registry``. Raises: ConfigurationError."""
    settings: dict[str, str] = {} if registry is None else {REGISTRY: registry}
    problems: list[PropertyProblem] = []
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            shown = HIDDEN if looks_secret(name) else redacted(name)
            problems.append(PropertyProblem("--set", "is not NAME=VALUE", value=shown))
            continue
        settings[name.strip()] = value
        if looks_secret(name):
            hide([value])
    if problems:
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    return settings


def tail_records(
    place: str,
    *,
    start: str,
    settings: Mapping[str, str],
    as_json: bool,
    until_idle: float | None,
    max_records: int | None,
    max_seconds: float | None,
) -> None:
    """Print records from ``start`` on (beginning, end or an offset) until an end that is given, or Ctrl-C.

    Idle counts from the end of what is there when reading begins.

    Raises: WaltapError.
    """
    from waltap.host import Host

    if start not in ("beginning", "end") and not (start.isascii() and start.isdecimal()):
        allowed = "beginning, end, or an offset such as 1200"
        problem = PropertyProblem("--from", "is no place in a topic", value=start, allowed=allowed)
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    host = Host()
    from waltap.cli.log_output import telemetry

    with telemetry(host, quiet=True), _stopped_by_signals() as stopped:
        decoder = _decoder(host, settings)
        stream = _stream(host, place, start, settings)
        show = _RecordPrinter(stream, decoder, as_json=as_json)
        began = idle_since = time.monotonic()
        count, told = 0, False
        try:
            while not stopped:
                records = stream.read(STEP_S)
                if not told:
                    _tell(stream, start)
                    told = True
                if max_records is not None:
                    records = records[: max_records - count]
                count += len(records)
                alive = show.print(records)
                now = time.monotonic()
                if records or not stream.at_end:
                    idle_since = now
                idle = until_idle is not None and stream.at_end and now - idle_since >= until_idle
                late = max_seconds is not None and now - began >= max_seconds
                if idle or late or not alive or count == max_records:
                    return
        finally:
            stream.close()


def _stream(host: "Host", place: str, start: str, settings: Mapping[str, str]) -> "RecordStream":
    from waltap.plugin_errors import LibraryMissing

    stream: RecordStream | None = host.choose(
        "choose_record_stream", place=place, start=start, settings=settings
    )
    if stream is None:
        scheme = place.partition("://")[0].lower()
        text = f"no plugin that is installed reads {scheme}://"
        raise LibraryMissing(text, extra=PLACES[scheme])
    return stream


def _decoder(host: "Host", settings: Mapping[str, str]) -> "RecordDecoder | None":
    """Return who reads bytes by a registry; None where none is named.

    Raises: ConfigurationError, LibraryMissing.
    """
    from waltap.plugin_errors import LibraryMissing
    from waltap.reading.stored_record import CONSUMER

    own = {name: value for name, value in settings.items() if not name.startswith(CONSUMER)}
    if not own:
        return None
    if REGISTRY not in own:
        problems = [
            PropertyProblem(name, "is no property of a consumer, and no registry is named",
                    allowed=f"{CONSUMER}NAME, or properties of a registry with --registry URL")
            for name in own
        ]  # fmt: skip
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    decoder: RecordDecoder | None = host.choose("choose_record_decoder", settings=own)
    if decoder is None:
        text = "no plugin that is installed reads by a schema registry"
        raise LibraryMissing(text, extra=SCHEMAS)
    return decoder


class _RecordPrinter:
    """Prints records; tells whether somebody still reads what is printed."""

    def __init__(
        self, stream: "RecordStream", decoder: "RecordDecoder | None", *, as_json: bool
    ) -> None:
        from waltap.config.environment import colours
        from waltap.reading.document import DocumentReader
        from waltap.reading.record_layout import RecordLayout, json_line
        from waltap.sink.terminal_style import TerminalStyle

        self._blind = decoder is None
        documents = DocumentReader(decoder)
        ink = TerminalStyle(width=WIDTH, coloured=sys.stdout.isatty() and colours())
        layout = RecordLayout(ink, documents, named=len(stream.topics) > 1)
        self._line: Callable[[StoredRecord], str] = layout.line
        if as_json:
            self._line = lambda record: json_line(record, documents)

    def print(self, records: "Sequence[StoredRecord]") -> bool:
        for record in records:
            view = memoryview(self._line(record).encode("utf-8", "replace"))
            try:
                while view:
                    view = view[os.write(1, view) :]
            except BrokenPipeError:  # `| head` has seen enough
                return False
            if self._blind and any(_names_schema(data) for data in (record.key, record.value)):
                self._blind = False
                _notice("bytes that begin with \\x00 may name a schema: --registry URL reads them")
        return True


def _names_schema(data: bytes | None) -> bool:
    return data is not None and len(data) > 5 and data[0] == 0


def _tell(stream: "RecordStream", start: str) -> None:
    more = "; --from beginning shows those that are there" if start == "end" else ""
    _notice(f"{', '.join(stream.topics)} from {start}; Ctrl-C ends{more}")


def _notice(text: str) -> None:
    from waltap.cli.live_console import notices

    notices().print(text, style="dim", markup=False, soft_wrap=True)


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """Give a list that is empty until SIGINT or SIGTERM comes; a second SIGINT ends the process."""
    came: list[int] = []

    def stop(number: int, _frame: object) -> None:
        came.append(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
