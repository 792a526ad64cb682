"""One SQL scenario, every decoder at once on one server: equal records, but for what is declared.

Eight `waltap run` capture tests/workloads/every_decoder.sql side by side. The records of pgoutput in
text are the reference. What a decoder's capabilities deny, and what its remarks say (both stand in
docs/reference/decoders.md), is applied to the reference by the rules below; after that nothing may
differ but clocks: keys, values, their schemas, headers, LSNs, transaction ids, commit times, order. A
declaration that changes nothing here is a failure, too: it is not true, or the scenario lacks it.

yboutput is a protocol double built from published sources (tests/harness/servers/yboutput); no YugabyteDB
server was run. It captures the schema ``whole`` alone, whose tables have the identity FULL.
"""

import base64
import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from tests.differential.comparison import differences, report
from tests.differential.engines import Waltap
from tests.differential.normalise import RUN_ID, Record, payload
from tests.harness.captures import context

from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.plugins.host import Host
from waltap.ports.specs import DecoderSpec

SCENARIO = Path(__file__).parents[1] / "workloads" / "every_decoder.sql"
HOST = Host()
CLOCK = "<clock>"
TIMES = ("ts_ms", "ts_us", "ts_ns")
KEY_CHANGE = {"__debezium.newkey", "__debezium.oldkey"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A decoder as a profile chooses it."""

    plugin: str
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> DecoderSpec:
        return HOST.decoders[self.plugin]

    @property
    def capabilities(self) -> DecoderCapabilities:
        """What the decoder says it can do, asked in this way."""
        return self.spec.factory(dataclasses.replace(context(), options=self.own)).capabilities

    @property
    def own(self) -> dict[str, object]:
        return {**self.properties, **self.spec.forced_options}

    @property
    def whole_transactions(self) -> bool:
        """Whether all changes of a transaction come in one frame: format 1 without chunks."""
        own = self.own
        return own.get("wal2json.format-version") == "1" and "wal2json.write-in-chunks" not in own


REFERENCE = "pgoutput text"
VARIANTS = {
    REFERENCE: Variant(plugin="pgoutput"),
    "pgoutput streaming": Variant(plugin="pgoutput", properties={"pgoutput.streaming": "on"}),
    "wal2json format 2": Variant(plugin="wal2json"),
    "wal2json format 1": Variant(plugin="wal2json", properties={"wal2json.format-version": "1"}),
    "wal2json chunks": Variant(plugin="wal2json_streaming"),
    "decoderbufs": Variant(plugin="decoderbufs"),
    "yboutput": Variant(plugin="yboutput"),
}


# --- records --------------------------------------------------------------------------------------


def plain(records: Sequence[Record]) -> list[Record]:
    """Return a copy without clocks: times of processing, and of messages outside transactions."""
    result = copy.deepcopy(list(records))
    for record in result:
        for header in record.get("headers", ()):
            if header["key"] == RUN_ID:
                header["value"] = CLOCK
        event = payload(record["value"])
        if event is not None:
            event.update(dict.fromkeys(TIMES, CLOCK))
            if event["op"] == "m" and event["source"]["txId"] is None:
                event["source"].update(dict.fromkeys(TIMES, CLOCK))
    return result


def events(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    return (event for record in records if (event := payload(record["value"])) is not None)


def rows(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for event in events(records):
        yield from (row for side in ("before", "after") if (row := event.get(side)) is not None)


def replace(row: dict[str, Any], name: str, value: object) -> int:
    """Set ``name``, show 1 if that changed anything."""
    old, row[name] = row[name], value
    return int(old != value)


# --- what is declared -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Pair:
    """The reference's records and a decoder's, for rules to change."""

    wanted: list[Record]
    found: list[Record]
    variant: Variant
    origin_number: str


Rule = Callable[[Pair], int]
"""Takes a declared difference out of the pair; shows in how many places it was seen."""


def drop(condition: Callable[[Record], bool]) -> Rule:
    """Return a rule: such records come from the reference only."""

    def rule(pair: Pair) -> int:
        kept = [record for record in pair.wanted if not condition(record)]
        count = len(pair.wanted) - len(kept)
        pair.wanted = kept
        return count

    return rule


def has_op(letter: str) -> Callable[[Record], bool]:
    return lambda record: (payload(record["value"]) or {}).get("op") == letter


def without_origin(pair: Pair) -> int:
    sources = [event["source"] for event in events(pair.wanted)]
    return sum(replace(s, "origin", None) + replace(s, "origin_lsn", None) for s in sources)


def without_special_numbers(pair: Pair) -> int:
    special = ("NaN", "Infinity", "-Infinity")
    numbers = [
        (row, name)
        for row in rows(pair.wanted)
        for name in ("f4", "f8")
        if row.get(name) in special
    ]
    return sum(replace(row, name, None) for row, name in numbers)


def without_last_commit(pair: Pair) -> int:
    """Which commit precedes a change depends on what transactions a plugin reports: without
    publications also those that changed nothing that is captured.
    """
    halves: list[list[object]] = []
    for records in (pair.wanted, pair.found):
        halves.append([])
        for event in events(records):
            last, own = json.loads(event["source"]["sequence"])
            halves[-1].append(last)
            event["source"]["sequence"] = own
    return sum(a != b for a, b in zip(*halves, strict=False))


def generated_columns_are_sent(pair: Pair) -> int:
    for record in pair.found:
        if record["value"] is not None and record["value"]["schema"].get("name", "").startswith(
            "s.whole.doubled."
        ):
            for side in record["value"]["schema"]["fields"][:2]:
                side["fields"] = [f for f in side["fields"] if f["field"] != "twice"]
    doubled = [row for row in rows(pair.found) if "twice" in row]
    assert all(row.pop("twice") == 2 * row["a"] for row in doubled)
    return len(doubled)


def generated_columns_are_not_sent(pair: Pair) -> int:
    doubled = [e for e in events(pair.found) if e["source"]["table"] == "doubled"]
    return len(doubled) if all("twice" not in e["after"] for e in doubled) else 0


def origin_is_a_number(pair: Pair) -> int:
    sources = [e["source"] for e in events(pair.wanted) if e["source"]["origin"] is not None]
    return sum(
        replace(s, "origin", pair.origin_number) + replace(s, "origin_lsn", 0) for s in sources
    )


def messages_end_at_nul(pair: Pair) -> int:
    count = 0
    for event in events(pair.wanted):
        if event["op"] == "m":
            content = base64.b64decode(event["message"]["content"]).partition(b"\0")[0]
            shown = base64.b64encode(content).decode()
            count += replace(event["message"], "content", shown)
    return count


def one_lsn_a_transaction(pair: Pair) -> int:
    if not pair.variant.whole_transactions:
        return 1  # it says so of another format
    lsns: dict[int, set[int]] = {}
    for event in events(pair.found):
        if event["source"]["txId"] is not None:
            lsns.setdefault(event["source"]["txId"], set()).add(event["source"]["lsn"])
    assert all(len(found) == 1 for found in lsns.values())
    count = 0
    for records in (pair.wanted, pair.found):
        for event in events(records):
            if event["source"]["txId"] is not None:
                count += event["source"]["lsn"] not in lsns[event["source"]["txId"]]
                event["source"].update(lsn="of the transaction", sequence="of the transaction")
    return count


def key_changes_do_not_refer(pair: Pair) -> int:
    count = 0
    for record in pair.wanted:
        kept = [header for header in record["headers"] if header["key"] not in KEY_CHANGE]
        count += kept != record["headers"]
        record["headers"] = kept
    return count


def composites_are_null(pair: Pair) -> int:
    return sum(replace(row, "pr", None) for row in rows(pair.wanted) if "pr" in row)


CAPABILITIES: dict[str, Rule] = {
    "truncate": drop(has_op("t")),
    "logical_messages": drop(has_op("m")),
    "origin": without_origin,
    "special_numbers": without_special_numbers,
    "publication_filters": without_last_commit,
}
NOT_IN_EVENTS = {"streaming", "two_phase", "relation_messages"}
"""Ways to receive: the events are the same."""

REMARKS: dict[str, Rule | None] = {
    # what only the catalogue could show: see test_names_mean_another.py
    "With lag: of tables that had one name over time, rows of all but the last may go to another of them.": None,
    "With lag: rows of a materialized view that is gone may seem to be a table's of its name.": None,
    "With lag: a column that a row leaves out, renamed or dropped since, may be missing or renamed.": None,
    "DDL beside row changes in one transaction is looked for 20 times a second at most.": None,
    "Changes of a table while it had a name that is not captured leave no gap once it is captured again.": None,
    "With lag: a dropped key is reported for later rows, too.": None,
    "Generated columns are not sent, unless a publication of PostgreSQL 18 says so.": (
        generated_columns_are_not_sent
    ),
    "Generated columns are not sent.": generated_columns_are_not_sent,
    "Generated columns are sent as well.": generated_columns_are_sent,
    "An origin comes as the server's number for it, without its LSN.": origin_is_a_number,
    "The content of a logical message ends at its first NUL.": messages_end_at_nul,
    "Format 1, unless in chunks, gives all changes of a transaction the LSN of its first frame.": (
        one_lsn_a_transaction
    ),
    "A change of the key arrives as a delete and an insert that do not refer to each other.": (
        key_changes_do_not_refer
    ),
    "Values of composite types are NULL, as the server's defaults have it.": composites_are_null,
    "Tables without primary key are not sent.": drop(
        lambda record: bool(record["topic"] == "s.whole.keyless")
    ),
    # said by the capabilities of a decoder that was asked for format 1
    "Format 1 has no TRUNCATE.": None,
    # Debezium's events hold timetz in UTC, and infinity as a number, whatever the decoder
    "The zone of timetz is lost: values are in UTC.": None,
    "Infinite dates are known by convention only.": None,
    # needs DDL between updates that no insert follows, see tests/unit/decoders
    "A column that was dropped may show as unchanged until the next insert: DDL is not announced.": (
        None
    ),
    # what test_yboutput_wire.py is about
    "Under identity CHANGE a column that was not written is distinguished from NULL, whatever its type.": (
        None
    ),
    "Verified against a protocol double built from published sources; no YugabyteDB server was run.": (
        None
    ),
}


def rules(variant: Variant) -> dict[str, Rule]:
    """Return the rules for what ``variant`` declares, by capability or remark."""
    found: dict[str, Rule] = {}
    for capability in fields(DecoderCapabilities):
        name = capability.name
        if name not in NOT_IN_EVENTS and not getattr(variant.capabilities, name):
            found[name] = CAPABILITIES[name]
    if variant.plugin == "yboutput":  # its publication is smaller than the reference's
        found["a publication of its own"] = without_last_commit
    for remark in variant.spec.remarks:
        if (rule := REMARKS[remark]) is not None:
            found[remark] = rule
    return found


def disagreement(pair: Pair) -> str:
    """Return what differs although nothing declares it, or is declared and does not; "" if all is well."""
    if pair.variant.plugin == "yboutput":
        pair.wanted = [r for r in pair.wanted if not str(r["topic"]).startswith("s.public.")]
    unseen = [what for what, rule in rules(pair.variant).items() if not rule(pair)]
    undeclared = differences(pair.wanted, pair.found)
    said = [f"  declared, but not so: {what}" for what in unseen]
    return "\n".join([*said, report(undeclared)] if undeclared else said)


# --- the run --------------------------------------------------------------------------------------


def parts() -> tuple[list[bytes], list[bytes]]:
    """Return the scenario's statements: those before the captures begin, and the changes."""
    text = SCENARIO.read_text(encoding="utf-8")
    _, setup, changes = re.split(r"^-- @(?:setup|changes)\n", text, flags=re.M)
    split = [s.encode() for s in setup.split(";\n") if s.strip()]
    return split, [
        s.encode() for line in changes.split(";\n") for s in line.split("; ") if s.strip()
    ]


@pytest.fixture
def captures(yb_database, tmp_path) -> Iterator[dict[str, Waltap]]:
    """Return the running captures of a database that was set up."""
    database = yb_database
    with database.connect() as connection:
        for statement in parts()[0]:
            connection.execute(statement)
    started: dict[str, Waltap] = {}
    for number, (name, variant) in enumerate(VARIANTS.items()):
        settings = {
            **database.properties(),
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": variant.plugin,
            "topic.prefix": "s",
            "slot.name": f"{database.name}_{number}"[-63:],
            "publication.name": "p",
            "publication.autocreate.mode": "filtered",
            "snapshot.mode": "no_data",
            "skipped.operations": "none",
            "include.unknown.datatypes": "true",
            "offset.storage.file.filename": "offsets",
        }
        if variant.plugin == "yboutput":
            settings |= {"table.include.list": r"whole\..*", "publication.name": "yb"}
        started[name] = Waltap(tmp_path / name, settings | variant.properties)
        started[name].wait_ready()  # publications are made one after the other
    yield started
    for capture in started.values():
        capture.stop()
    origins = (
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = %s"
    )
    database.execute(origins, f"origin_{database.name}")


def test_every_decoder_gives_the_same_records_but_for_what_it_declares(yb_database, captures):
    with yb_database.connect() as connection:
        for statement in parts()[1]:
            connection.execute(statement)
    for capture in captures.values():
        capture.finish(yb_database)
    records = {name: plain(capture.records()) for name, capture in captures.items()}
    assert {payload(r["value"])["op"] for r in records[REFERENCE] if r["value"]} == set("cudtm")
    ((number, streamed),) = yb_database.execute(
        "SELECT (SELECT roident::text FROM pg_replication_origin WHERE roname = %s),"
        " (SELECT sum(stream_txns) FROM pg_stat_replication_slots WHERE slot_name LIKE %s)",
        f"origin_{yb_database.name}",
        f"%{yb_database.name}_{list(VARIANTS).index('pgoutput streaming')}",
    )
    assert streamed > 0, "no transaction was streamed in progress"
    problems = {}
    for name, variant in VARIANTS.items():
        reference = copy.deepcopy(records[REFERENCE])
        pair = Pair(wanted=reference, found=records[name], variant=variant, origin_number=number)
        if name == REFERENCE:
            pair.found = copy.deepcopy(reference)
        if said := disagreement(pair):
            problems[name] = said
    assert not problems, "\n".join(f"{name}:\n{said}" for name, said in problems.items())


@pytest.mark.parametrize("name", sorted(HOST.decoders))
def test_every_remark_has_a_rule_or_a_reason(name):
    assert not [remark for remark in HOST.decoders[name].remarks if remark not in REMARKS]


def test_every_decoder_of_ours_takes_part():
    ours = {spec.name for spec in HOST.decoders.values() if spec.remarks}
    assert {variant.plugin for variant in VARIANTS.values()} == ours
