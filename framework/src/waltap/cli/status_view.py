"""What ``waltap status`` and ``waltap top`` draw, of documents as `/api/status` has them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["ago", "overview", "run_view", "size"]

COLOURS = {"streaming": "green", "snapshot": "green", "failed": "red", "stopped": "dim"}
NAMED = 12


def size(octets: int | None) -> str:
    """Return a number of bytes for people."""
    if octets is None:
        return "?"
    value, unit = float(octets), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def ago(ms: float) -> str:
    """Return a span of time for people."""
    seconds = max(0, round(ms / 1000))
    for longest, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < longest:
            return f"{round(seconds / length)} {unit}"
    return f"{round(seconds / 86_400)} days"


def run_view(run: dict[str, Any]) -> "RenderableType":
    """Return what a running pipeline says of itself, as a table of names and values."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(run["pipeline"]), box=box.SIMPLE, show_header=False)
    for name, value in _rows(run):
        table.add_row(name, value)
    return table


def overview(reports: "Sequence[dict[str, Any]]", order: str = "name") -> "Table":
    """Return a line for each pipeline, of what `waltap.cli.fleet.report` gives. ``order``: name, lag,
    rate or state."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("pipeline", "state", "events/s", "behind", "late", "WAL kept", "slot", "events"):
        right = name in {"events/s", "behind", "late", "WAL kept", "events"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "state")
    for each in sorted(reports, key=lambda found: _rank(found, order)):
        table.add_row(*_line(each))
    return table


def _rank(report: dict[str, Any], order: str) -> tuple[Any, ...]:
    run, name = report["run"], report["pipeline"]
    if order == "state":
        return "" if run is None else run["state"], name
    if run is None or order == "name":
        return order != "name", name
    value = _behind(run) if order == "lag" else _rate(run)
    return False, -(value or 0), name


def _line(report: dict[str, Any]) -> list[str]:
    from rich.markup import escape

    run, name = report["run"], escape(report["pipeline"])
    if run is None:
        why = escape(report["problem"]) or "not running"
        return [name, f"[{'red' if report['problem'] else 'dim'}]{why}[/]", *[""] * 6]
    slot = run.get("slot") or {}
    late = max((p["lag_ms"] for p in run["partitions"] if p["lag_ms"] is not None), default=None)
    return [
        name,
        _state(run),
        f"{_rate(run):,.0f}",
        size(_behind(run)),
        "" if late is None else ago(late),
        size(slot["retained_bytes"]) if slot else "",
        _health(slot) if slot else "",
        f"{run['events']:,}",
    ]


def _rows(run: dict[str, Any]) -> "list[tuple[str, str]]":
    now = run["at_ms"]
    done = (
        f"{run['events']:,} events, {run['snapshot_rows']:,} of them of snapshots, in "
        f"{run['transactions']:,} transactions; {ago(now - run['started_ms'])} old"
    )
    rates = ", ".join(f"{rate:,.0f}/s over {s} s" for s, rate in run["events_per_second"])
    return [
        ("state", f"{_state(run)} for {ago(now - run['state_since_ms'])}"),
        ("this run", done),
        ("rates", rates),
        *(row for each in run["partitions"] for row in _partition_rows(each)),
        *_slot_rows(run.get("slot")),
        *_trouble_rows(run),
        *_table_rows(run),
    ]


def _partition_rows(partition: dict[str, Any]) -> "list[tuple[str, str]]":
    from rich.markup import escape

    label = f" of {escape(partition['name'])}" if partition["name"] else ""
    lag_ms = partition["lag_ms"]
    late = "" if lag_ms is None else f", the last change was {ago(lag_ms)} old"
    way = (
        f"server {partition['server'] or '?'}, received {partition['received']}, at the sink "
        f"{partition['written']}, durable {partition['durable']}, confirmed {partition['confirmed']}"
    )
    return [(f"lag{label}", f"{size(partition['lag_bytes'])}{late}"), (f"positions{label}", way)]


def _trouble_rows(run: dict[str, Any]) -> "list[tuple[str, str]]":
    from rich.markup import escape

    found = []
    if run["queued_events"] or run["held_bytes"] or run["open_transactions"]:
        held = f"{size(run['held_bytes'])}, {size(run['spilled_bytes'])} of it in files"
        hand = f"{run['queued_events']:,} gathered, {run['open_transactions']:,} open transactions"
        found.append(("in hand", f"{hand} with {held}"))
    if run["reconnects"] or run["batch_retries"]:
        tries = (
            f"connected anew {run['reconnects']:,} times, batches again {run['batch_retries']:,}"
        )
        found.append(("tries", tries))
    failure = run["last_failure"]
    if failure:
        went_on = ", the run went on" if failure["retried"] else ""
        when = f"{ago(run['at_ms'] - failure['at_ms'])} ago{went_on}"
        what = f"{failure['code']} {when}: {failure['problem']}"
        found.append(("last failure", f"[yellow]{escape(what)}[/]"))
    return found


def _table_rows(run: dict[str, Any]) -> "list[tuple[str, str]]":
    from rich.markup import escape

    found = []
    for table in run["snapshot"]:
        if not table["complete"]:
            whole = "" if table["estimate"] is None else f" of about {table['estimate']:,}"
            found.append((f"reads {escape(table['table'])}", f"{table['rows']:,} rows{whole}"))
    read = sum(table["complete"] for table in run["snapshot"])
    if read:
        found.append(("snapshot", f"{read:,} tables read"))
    return [*found, ("tables", _names(run["captured_tables"]))]


def _slot_rows(slot: dict[str, Any] | None) -> "list[tuple[str, str]]":
    from rich.markup import escape

    if slot is None:
        return []
    limit = "" if slot["limit_bytes"] is None else f" of {size(slot['limit_bytes'])}"
    of = {"": "", "budget": " (waltap.wal.budget)", "slot": " (max_slot_wal_keep_size)"}
    kind = of.get(slot["limit_kind"], f" ({slot['limit_kind']})") if limit else ""
    rows = [
        ("slot", f"{escape(slot['name'])}: {_health(slot)}"),
        ("WAL kept", f"{size(slot['retained_bytes'])}{limit}{kind} {slot['wal_status']}"),
    ]
    if slot["orphans"]:
        rows.append(
            ("orphans", f"[yellow]{escape(', '.join(slot['orphans']))}[/]: nobody reads them")
        )
    return rows


def _health(slot: dict[str, Any]) -> str:
    """Return the forecast in words."""
    from rich.markup import escape

    if slot["invalidation"]:
        return f"[red]lost: {escape(slot['invalidation'])}[/]"
    left = slot["seconds_left"]
    if left is not None:
        colour = "red" if left < 3600 else "yellow"
        return f"[{colour}]full in {ago(left * 1000)}[/]"
    if slot["limit_bytes"] is None:
        return "no limit known"
    share = slot["retained_bytes"] / slot["limit_bytes"] if slot["limit_bytes"] > 0 else 1.0
    return f"{share:.0%} used"


def _state(run: dict[str, Any]) -> str:
    return f"[{COLOURS.get(run['state'], 'yellow')}]{run['state']}[/]"


def _rate(run: dict[str, Any]) -> float:
    return next((rate for _, rate in run["events_per_second"]), 0.0)


def _behind(run: dict[str, Any]) -> int | None:
    return max(
        (p["lag_bytes"] for p in run["partitions"] if p["lag_bytes"] is not None), default=None
    )


def _names(tables: list[str]) -> str:
    from rich.markup import escape

    more = len(tables) - NAMED
    shown = ", ".join(tables[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"{len(tables):,}: {escape(shown)}" if tables else "0"
