"""A status as a piece of HTML, for notebooks: two tables and no outside resource."""

from collections.abc import Iterable, Iterator
from html import escape

from waltap.amounts import size
from waltap.pipeline.status import PipelineStatus
from waltap.printable import printable
from waltap.source.position import lsn_text

__all__ = ["status_html"]

TABLES_MAX = 50
"""Tables that are shown."""


def status_html(status: PipelineStatus) -> str:
    """Return what a person wants to know first."""
    rate = next((rate for _, rate in status.events_per_second), 0.0)
    facts = [
        ("state", status.state),
        ("events", f"{status.events:,}"),
        ("snapshot rows", f"{status.snapshot_rows:,}"),
        ("transactions", f"{status.transactions:,}"),
        ("events/s", f"{rate:,.0f}"),
    ]
    for each in status.partitions:
        named = f" {each.name}" if each.name else ""
        facts += [
            (f"received{named}", lsn_text(each.received_lsn)),
            (f"durable{named}", str(each.durable)),
            (f"behind{named}", "" if each.lag_bytes is None else size(each.lag_bytes)),
        ]
    if status.last_failure is not None:
        failure = status.last_failure
        facts.append(("last failure", f"{failure.code} {failure.problem}"))
    parts = [f"<b>{escape(printable(status.pipeline))}</b>", _table([], facts)]
    tables = list(_tables(status))
    if tables:
        parts.append(
            _table(["table", "snapshot rows", "of about", "complete"], tables[:TABLES_MAX])
        )
    if len(tables) > TABLES_MAX:
        parts.append(f"<p>and {len(tables) - TABLES_MAX:,} more tables</p>")
    return "".join(parts)


def _tables(status: PipelineStatus) -> Iterator[tuple[str, ...]]:
    """Give a line for every captured table, with its part of the snapshot where there was one."""
    read = {each.table: each for each in status.snapshot}
    for name in dict.fromkeys((*read, *status.captured_tables)):
        each = read.get(name)
        if each is None:
            yield name, "", "", ""
            continue
        estimate = "" if each.estimate is None else f"{each.estimate:,}"
        yield name, f"{each.rows:,}", estimate, "yes" if each.complete else ""


def _table(head: list[str], rows: Iterable[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(printable(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{cells}</tr>' if head else ''}{body}</table>"
