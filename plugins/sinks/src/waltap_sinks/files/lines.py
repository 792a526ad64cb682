"""Collect lines for files by folder."""

import datetime as dt
import gzip
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from waltap.base.cache import BoundedDict
from waltap.base.import_rules import pa
from waltap.changes.events.event import Record
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.encoders.format.record_block import RecordBlock, pieces_of
from waltap.encoders.json.lines import JsonLines

GZIP_LEVEL: Final = 4
ENDINGS: Final = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
MOST_FOLDERS: Final = 20_000
_topic_of = attrgetter("topic")


class FolderNames:
    """Name folders by topic or table, and hour."""

    def __init__(self, layout: str, prefix: str) -> None:
        self._layout, self._prefix = layout, f"{prefix}."
        # Tables whose names differ only in characters that a topic cannot have share a topic.
        self._known = BoundedDict[tuple[str, str, str], str](MOST_FOLDERS)

    def of_topic(self, topic: str, hour: str) -> str:
        return self.of(topic.removeprefix(self._prefix), topic, hour)

    def of(self, table: str, topic: str, hour: str) -> str:
        """Return the folder for ``table`` in ``hour``, a result of `day_of`."""
        folder = self._known.get((table, topic, hour))
        if folder is None:
            folder = self._known[table, topic, hour] = self._layout.format(
                table=_value(table), topic=_value(topic), date=hour[:10], hour=hour[11:]
            )
        return folder


class LineBlocks:
    """Collect blocks of whole lines by folder."""

    def __init__(self, folders: FolderNames, compression: str, *, values: bool) -> None:
        """Collect records, or with ``values`` their values alone."""
        self._folders, self._compression, self._values = folders, compression, values
        self._lines = JsonLines()
        self.ending = ENDINGS[compression]
        self.clear()

    def forget(self, oid: int) -> None:
        """Do nothing: lines keep no relation."""

    def clear(self) -> None:
        self.bytes = 0
        self._blocks: dict[str, list[bytes | memoryview]] = {}
        # Lines by folder.
        self._counts: Counter[str] = Counter()

    def add(self, batch: Batch) -> None:
        records = batch.records
        if not records:
            return
        hour = day_of(batch)
        for piece in pieces_of(records):
            self._add(piece, hour)

    def _add(self, records: Sequence[Record], hour: str) -> None:
        if isinstance(records, RecordBlock) and not self._values:
            blocks = list(self._lines.portions(records))
            self._keep(records.topic, hour, blocks, len(records))
            return
        for topic, of_topic in groupby(records, _topic_of):
            run = list(of_topic)
            if not self._values:
                self._keep(topic, hour, [self._lines.lines(run)], len(run))
                continue
            values = [record.value for record in run if record.value is not None]
            if values:
                self._keep(topic, hour, [b"\n".join([*values, b""])], len(values))

    def take(self) -> list[tuple[str, list[bytes | memoryview], int]]:
        """Return and forget each file's folder, blocks and line count."""
        filled = [(folder, blocks, self._counts[folder]) for folder, blocks in self._blocks.items()]
        self.clear()
        return filled

    def content(self, blocks: list[bytes | memoryview]) -> bytes:
        """Return a file's content, the same for the same blocks."""
        data = b"".join(blocks)
        if self._compression == "gzip":
            # The same lines must give the same bytes, so the file has no time.
            return gzip.compress(data, GZIP_LEVEL, mtime=0)
        if self._compression == "zstd":
            made: bytes = pa.Codec("zstd").compress(data, asbytes=True)
            return made
        return data

    def _keep(self, topic: str, hour: str, lines: list[bytes | memoryview], count: int) -> None:
        folder = self._folders.of_topic(topic, hour)
        self._blocks.setdefault(folder, []).extend(lines)
        self._counts[folder] += count
        self.bytes += sum(map(len, lines))


def day_of(batch: Batch) -> str:
    """Return the last commit's hour in UTC, as 2026-03-01T14.

    For a snapshot it is the hour of the read, and without either the present one.
    """
    for part in reversed(batch.parts):
        stamp = 0
        if type(part) is TransactionPart:
            stamp = part.commit_ts
        elif type(part) is SnapshotRows:
            stamp = part.ts
        if stamp:
            moment = dt.datetime.fromtimestamp(stamp / 1_000_000, dt.UTC)
            return moment.strftime("%Y-%m-%dT%H")
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H")


def _value(text: str) -> str:
    """Return ``text`` as the value in a folder name KEY=VALUE.

    Readers of such folders decode it.
    """
    found = urllib.parse.quote(text, safe=" .,@+")
    # A topic may come from a row, and dots alone name this folder or the one above.
    return found if found.strip(".") else found.replace(".", "%2E")
