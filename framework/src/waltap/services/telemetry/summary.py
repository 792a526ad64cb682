"""Summarize a run in one line."""

from waltap.changes.transactions.position import lsn_text
from waltap.services.monitor.status import PipelineStatus

__all__ = ["summary_fields", "summary_line"]


def summary_fields(status: PipelineStatus) -> dict[str, object]:
    """Return the summary as fields of a log line.

    ``lsn`` is the last position that the sink has.
    """
    found: dict[str, object] = {
        "changes": status.changes,
        "snapshot_rows": status.snapshot_rows,
        "transactions": status.transactions,
        "seconds": round((status.at_ms - status.started_ms) / 1000, 1),
    }
    # a run that failed before its stream or snapshot has no position
    if status.partitions:
        found["lsn"] = lsn_text(status.partitions[0].written.end_lsn)
    return found


def summary_line(status: PipelineStatus) -> str:
    """Return the summary in words."""
    found = summary_fields(status)
    text = (
        f"{found['changes']:,} changes in {found['transactions']:,} transactions and "
        f"{found['snapshot_rows']:,} snapshot rows in {found['seconds']:,} s"
    )
    return f"{text}, up to {found['lsn']}" if "lsn" in found else text
