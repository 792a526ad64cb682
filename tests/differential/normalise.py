"""The canonical form of a dump: what is volatile by nature is replaced, the rest stays as it is.

A dump is a file with one JSON object per line: topic, key, value, headers; key, value and header
values are JSON texts, as Debezium gives them, or JSON itself. A field that is absent stays absent,
null stays null. What is replaced:

- ``ts_ms``, ``ts_us``, ``ts_ns``: ``<ts>``; ``<ts?>`` when they do not show the same instant;
- ``source.version``: ``<version>``; ``source.xmin``: ``<xmin>``;
- ``source.lsn``: ``lsn#K``, its rank among the LSNs of the dump's records. A logical message has the
  LSN at which its record ends, where the next one begins if nobody else wrote between them: it ranks
  before that one whether it did or not;
- ``source.sequence``: its own half ``lsn#K``, its commit half ``after lsn#K``, where K records lie
  below it;
- transaction ids: ``tx#K``, the K-th transaction seen; with an LSN behind a colon, ``tx#K:after lsn#K``;
- ids and times of the windows of incremental snapshots, the run id in a header;
- ``timestamp`` of notifications: ``<ts>``, and their ids that were made, ``<uuid>``; their lists of
  tables are sorted. They stand behind all other records: topics have no order between them;
- what Debezium renders with a Java object id: inner arrays, and the name under which a transaction
  counts its messages (waltap's ``LOGICAL_DECODING_MESSAGE`` alike);
- a schema, or a whole list of headers, equal to the one before it in the same topic: ``$same``;
- heartbeats, and topics reported to collapse: only the first record stays, moved to the end; it does not
  take part in ranks.

Order and grouping of records are still compared through ranks and ordinals. The form is stable: a
canonical dump normalises to itself.
"""

import copy
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""One record: topic, key, value and, where there are any, headers; all of it parsed JSON."""

SAME = "$same"
TIMES = ("ts_ms", "ts_us", "ts_ns")
UUID = "-".join(f"[0-9a-f]{{{n}}}" for n in (8, 4, 4, 4, 12))
WINDOW_ID = re.compile(UUID + r"-(open|close)$")
WINDOW_TIME = re.compile(r'"((?:open|close)WindowTimestamp)"\s*:\s*"[^"]*"')
WHOLE_UUID = re.compile(f"^{UUID}$")
NOTIFICATION = {"id", "type", "aggregate_type", "additional_data", "timestamp"}
TRANSACTION_ID = re.compile(r"(\d+)(?::(\d+))?")
JAVA_ARRAY = re.compile(r"\[L?[\w.$]+;?@[0-9a-f]+")
MESSAGES = re.compile(r"^io\.debezium\..*MessageId@[0-9a-f]+$|^LOGICAL_DECODING_MESSAGE$")
HALF_SURROGATE = re.compile("[\ud800-\udfff]")
RUN_ID = "__debezium.context.runId"


def read(path: Path) -> list[Record]:
    """Return the records of a dump.

    Raises: ValueError naming the line that is no JSON object.
    """
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                found.append(parse(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}:{number}: not a record: {error}") from error
    return found


def parse(text: str) -> Record:
    """Return the record that one line of a dump holds.

    Raises: ValueError, TypeError or KeyError when it holds none.
    """
    line = json.loads(text)
    record = {
        "topic": line["topic"],
        "key": _parsed(line.get("key")),
        "value": _parsed(line.get("value")),
    }
    headers = line.get("headers") or []
    if headers == SAME:
        record["headers"] = SAME
    elif headers:
        record["headers"] = [
            {"key": header["key"], "value": _parsed(header.get("value"))} for header in headers
        ]
    if line.get("partition") is not None:
        record["partition"] = line["partition"]
    return record


def canonical(records: Iterable[Record], collapse: Iterable[str] = ()) -> list[Record]:
    """Return ``records`` in canonical form; ``collapse`` holds patterns of topics to fold into one."""
    patterns = [re.compile(pattern) for pattern in ["heartbeat", *collapse]]
    kept: list[Record] = []
    folded: dict[str, Record] = {}
    for record in copy.deepcopy(list(records)):
        topic = record["topic"] or ""
        if any(pattern.search(topic) for pattern in patterns):
            folded.setdefault(topic, record)
        else:
            kept.append(record)
    canon = _Canon(kept)
    for record in kept:
        canon.replace(record)
    for record in folded.values():
        if (source := _source(record)) is not None:
            volatile = [
                name for name in ("txId", "lsn", "sequence") if source.get(name) is not None
            ]
            source.update({name: f"<{name}>" for name in volatile})
        canon.replace(record)
    kept.sort(key=_is_notification)
    result = [*kept, *(folded[topic] for topic in sorted(folded))]
    _fold_repeated(result)
    return result


def payload(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"schema", "payload"}:
        return value["payload"]
    return value


def text(value: Any, **options: Any) -> str:
    """Return JSON in plain Unicode; half surrogate pairs, which UTF-8 cannot hold, stay escaped."""
    plain = json.dumps(value, ensure_ascii=False, **options)
    return HALF_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)


def lines(records: Iterable[Record]) -> Iterator[str]:
    return (text(record, separators=(",", ":")) for record in records)


class _Canon:
    """Replaces what is volatile; ranks come from all records, ordinals from their order."""

    def __init__(self, records: list[Record]) -> None:
        places = (
            _place(source["lsn"], record)
            for record in records
            if (source := _source(record)) is not None and isinstance(source.get("lsn"), int)
        )
        self._lsns = sorted(set(places))
        self._transactions: dict[int, int] = {}

    def replace(self, record: Record) -> None:
        for header in record["headers"] if record.get("headers", SAME) != SAME else ():
            if header["key"] == RUN_ID and isinstance(payload(header["value"]), str):
                if isinstance(header["value"], dict):
                    header["value"]["payload"] = "<uuid>"
                else:
                    header["value"] = "<uuid>"
        key, value = payload(record["key"]), payload(record["value"])
        if _is_notification(record):
            _replace_notification(key, value)
            return
        if isinstance(key, dict):
            _replace_window_id(key)
        if not isinstance(value, dict):
            return
        _replace_times(value)
        if isinstance(value.get("source"), dict):
            self._replace_source(value["source"], record)
        if isinstance(value.get("transaction"), dict):
            self._replace_transaction_id(value["transaction"])
        if isinstance(value.get("data_collections"), list):
            _replace_message_counts(value["data_collections"])
        if value.get("status") in ("BEGIN", "END"):
            self._replace_transaction_id(value)
            if isinstance(key, dict):
                self._replace_transaction_id(key)
        for side in ("before", "after"):
            if isinstance(value.get(side), dict):
                _replace_in_row(value[side])

    def _lsn(self, lsn: int) -> str:
        return f"lsn#{bisect_left(self._lsns, lsn) + 1}"

    def _after(self, lsn: int) -> str:
        return f"after lsn#{bisect_left(self._lsns, lsn)}"

    def _transaction(self, xid: int) -> str:
        return f"tx#{self._transactions.setdefault(xid, len(self._transactions) + 1)}"

    def _replace_transaction_id(self, holder: dict[str, Any]) -> None:
        given = holder.get("id")
        if isinstance(given, str) and (match := TRANSACTION_ID.fullmatch(given)):
            place = "" if match[2] is None else f":{self._after(int(match[2]))}"
            holder["id"] = self._transaction(int(match[1])) + place

    def _replace_source(self, source: dict[str, Any], record: Record) -> None:
        _replace_times(source)
        if isinstance(source.get("version"), str):
            source["version"] = "<version>"
        if isinstance(source.get("txId"), int):
            source["txId"] = self._transaction(source["txId"])
        if isinstance(source.get("lsn"), int):
            source["lsn"] = self._lsn(_place(source["lsn"], record))
        if isinstance(source.get("xmin"), int):
            source["xmin"] = "<xmin>"
        sequence = _parsed(source.get("sequence"))
        if isinstance(sequence, list) and len(sequence) == 2 and all(map(_is_lsn, sequence)):
            commit, own = sequence
            source["sequence"] = [
                None if commit is None else self._after(int(commit)),
                None if own is None else self._lsn(_place(int(own), record)),
            ]


def _parsed(value: Any) -> Any:
    """Parse JSON text; what is no text, or no JSON, stays."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _source(record: Record) -> dict[str, Any] | None:
    value = payload(record["value"])
    source = value.get("source") if isinstance(value, dict) else None
    return source if isinstance(source, dict) else None


def _place(lsn: int, record: Record) -> int:
    """Return where the record of the WAL stands that ``record`` came from, of whose LSN it has ``lsn``: the
    last byte of a logical message's."""
    value = payload(record["value"])
    return lsn - 1 if isinstance(value, dict) and value.get("op") == "m" else lsn


def _is_lsn(value: Any) -> bool:
    """Return whether ``value`` can stand in ``source.sequence``: a number as text, or null."""
    return value is None or (isinstance(value, str) and value.isdigit())


def _replace_times(holder: dict[str, Any]) -> None:
    present = [name for name in TIMES if name in holder]
    values = [holder[name] for name in present]
    if all(
        value is None or (isinstance(value, str) and value.startswith("<ts")) for value in values
    ):
        return
    agree = all(type(value) is int and value > 0 for value in values)
    if agree:
        times = [holder.get(name) for name in TIMES]
        pairs = zip(times, times[1:], strict=False)
        agree = all(a is None or b is None or a == b // 1000 for a, b in pairs)
    holder.update(dict.fromkeys(present, "<ts>" if agree else "<ts?>"))


def _is_notification(record: Record) -> bool:
    value = payload(record["value"])
    return isinstance(value, dict) and set(value) >= NOTIFICATION


def _replace_notification(key: Any, value: dict[str, Any]) -> None:
    if isinstance(value["timestamp"], int) and value["timestamp"] > 0:
        value["timestamp"] = "<ts>"
    for holder in (key, value):
        if isinstance(holder, dict) and isinstance(holder.get("id"), str):
            holder["id"] = WHOLE_UUID.sub("<uuid>", holder["id"])
    data = value["additional_data"]
    if isinstance(data, dict) and isinstance(data.get("data_collections"), str):
        data["data_collections"] = ",".join(sorted(data["data_collections"].split(",")))


def _replace_window_id(holder: dict[str, Any]) -> None:
    if isinstance(holder.get("id"), str):
        holder["id"] = WINDOW_ID.sub(r"<uuid>-\1", holder["id"])


def _replace_message_counts(counts: list[dict[str, Any]]) -> None:
    if any(MESSAGES.search(str(count.get("data_collection"))) for count in counts):
        for count in counts:
            count["data_collection"] = MESSAGES.sub("<message>", count["data_collection"])
        counts.sort(key=lambda count: str(count["data_collection"]))


def _replace_in_row(row: dict[str, Any]) -> None:
    for value in row.values():
        if isinstance(value, list):
            value[:] = [
                "<java array>" if isinstance(item, str) and JAVA_ARRAY.fullmatch(item) else item
                for item in value
            ]
    if isinstance(row.get("id"), str) and (
        WINDOW_ID.search(row["id"]) or row["id"].startswith("<uuid>-")
    ):
        _replace_window_id(row)
        for name, value in row.items():
            if isinstance(value, str):
                row[name] = WINDOW_TIME.sub(r'"\1": "<ts>"', value)


def _fold_repeated(records: list[Record]) -> None:
    """Write schemas and lists of headers once per topic, until they change."""
    seen: dict[tuple[str, str], str] = {}
    for record in records:
        for part in ("key", "value"):
            value = record[part]
            if not isinstance(value, dict) or set(value) != {"schema", "payload"}:
                continue
            if value["schema"] in (SAME, None):
                continue
            plain = json.dumps(value["schema"])
            if seen.get((record["topic"], part)) == plain:
                value["schema"] = SAME
            seen[record["topic"], part] = plain
        if record.get("headers") != SAME:
            plain = json.dumps(record.get("headers"))
            if seen.get((record["topic"], "headers")) == plain and "headers" in record:
                record["headers"] = SAME
            seen[record["topic"], "headers"] = plain
