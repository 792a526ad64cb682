"""A status as JSON has it: for ``/api/status``, the control socket, and commands."""

import msgspec

from waltap.changes.transactions.position import lsn_text
from waltap.services.monitor.status import PipelineStatus


def status_document(status: PipelineStatus) -> dict[str, object]:
    """Return a status as JSON has it: LSNs as text, durations and times in ms."""
    document: dict[str, object] = msgspec.to_builtins(status)
    document["partitions"] = [
        {
            "name": each.name,
            "received": lsn_text(each.received_lsn),
            "written": str(each.written),
            "durable": str(each.durable),
            "confirmed": lsn_text(each.confirmed_lsn),
            "server": None if each.server_lsn is None else lsn_text(each.server_lsn),
            "lag_bytes": each.lag_bytes,
            "lag_ms": each.lag_ms,
            "committed_ms": each.committed_ms,
        }
        for each in status.partitions
    ]
    document["tables"] = [_with_lsn(each, "commit_lsn") for each in status.tables]
    document["onward"] = [
        {
            **_with_lsn(each, "lsn"),
            "lag_ms": each.lag_ms(status.at_ms),
            "tables": [_with_lsn(table, "lsn") for table in each.tables],
        }
        for each in status.onward
    ]
    if status.last_event is not None:
        document["last_event"] = _with_lsn(status.last_event, "commit_lsn")
    return document


def _with_lsn(value: object, name: str) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(value)
    lsn = found[name]
    assert isinstance(lsn, int)
    found[name] = lsn_text(lsn) if lsn else None
    return found
