"""A log of transactions in parts holds what a log of whole transactions does."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.changelog import Database, WrittenLog, batch, in_parts, relation

from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap_testing.workload import inserts_as_columns

COLUMNS = [("id", "int4"), ("name", "text")]
KEYED = relation("public.keyed", COLUMNS)
GROWN = relation("public.keyed", [*COLUMNS, ("age", "int4")])
KEYLESS = relation("public.keyless", COLUMNS, key=(), identity="f")
TABLES = (KEYED, KEYLESS)


@st.composite
def histories(draw: st.DrawFn) -> list[TransactionPart]:
    """Return transactions; the keyed table may gain a column in the middle of one."""
    db, serial, keyed = Database(), 0, KEYED
    transactions: list[TransactionPart] = []
    for _ in range(draw(st.integers(1, 5))):
        for _ in range(draw(st.integers(0, 4))):
            table = draw(st.sampled_from(TABLES))
            held = db.rows.get(table.name, [])
            step = draw(st.sampled_from(["insert", "insert", "update", "delete", "move", "grow"]))
            if step == "grow":
                keyed = GROWN
                db.rows.pop(KEYED.name, None)
                continue
            used = keyed if table is KEYED else table
            if step == "insert" or not held:
                for _ in range(draw(st.integers(1, 5))):
                    serial += 1
                    db.insert(used, [str(serial), f"n{serial}", *[None] * (len(used.columns) - 2)])
                continue
            row = draw(st.sampled_from(held))
            key = row if table is KEYLESS else row[:1]
            if step == "delete":
                db.delete(used, key)
            elif step == "move":
                serial += 1
                db.update(used, key, id=str(serial))
            else:
                unsent = ["name"] if table is KEYED and draw(st.booleans()) else []
                db.update(used, key, unsent)
        transactions.append(db.commit())
    return transactions


def cut(draw: Any, transaction: TransactionPart) -> list[TransactionPart]:
    count = len(transaction.changes)
    bounds = sorted(draw(st.sets(st.integers(1, max(1, count - 1)), max_size=3)) - {count})
    ends = [*bounds, count] if count > 1 else [count]
    return in_parts(transaction, *[b - a for a, b in zip([0, *ends], ends, strict=False)])


def content(batches: list[Batch], settings_: dict[str, int]) -> dict[str, Any]:
    """Return what readers find in the log of ``batches``."""
    with tempfile.TemporaryDirectory() as folder:
        log = WrittenLog(Path(folder))
        with log.open(settings_):
            for each in batches:
                log.write(each)
            log.sink.flush()
        tables = [table for manifest in log.manifests() for table in manifest.tables]
        found: dict[str, Any] = {}
        for table in TABLES:
            mine = [entry for entry in tables if entry.table == table.table]
            found[table.name] = {
                "rows": log.rows(table.table) if mine else [],
                "fingerprints": list(dict.fromkeys(entry.fingerprint for entry in mine)),
                "key_changes": sum(entry.key_changes for entry in mine),
                "unchanged": {name for entry in mine for name in entry.unchanged},
                "operations": {
                    op: sum(entry.operations.get(op, 0) for entry in mine) for op in "cudt"
                },
            }
            found[f"{table.name} crossed"] = any(entry.key_reused for entry in mine)
            found[f"{table.name} segments"] = sum(len(entry.segments) for entry in mine)
        return found


@given(histories(), st.integers(1, 6), st.sampled_from([0, 1 << 24]), st.data())
def test_parts_hold_what_whole_transactions_do(transactions, chunk_rows, memory, data):
    chosen = {"chunk.rows": chunk_rows, "memory.max.bytes": memory}
    parts = [part for each in transactions for part in cut(data.draw, each)]
    batches = [inserts_as_columns(batch(part)) for part in parts]
    found = content(batches, chosen)
    expected = content([batch(each) for each in transactions], chosen)
    for table in TABLES:
        assert found[table.name] == expected[table.name]
        # Without the earlier columns of a transaction, the mark is set to be safe.
        assert found[f"{table.name} crossed"] >= expected[f"{table.name} crossed"]
