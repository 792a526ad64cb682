"""What ``waltap status`` and ``waltap top`` draw, of documents as `/api/status` has them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from waltap.base.text import FORESEEN_S, ago, full_in, printable_lines, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

__all__ = [
    "SafeConsole",
    "overview",
    "run_view",
]


# A console on which text of others drives nothing.


class SafeConsole(Console):
    """Colours and bars are segments of their own; what is text in a segment is only text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, with what is not printable escaped."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


COLOURS = {"streaming": "green", "snapshot": "green", "failed": "red", "stopped": "dim"}
NAMED = 12
FAILURES = 3
BUSY = 5


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
    """Return a line for each pipeline, of what `waltap.cli.commands.status.report` gives.
    ``order``: name, lag, rate or state."""
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
        ("state", f"{_state(run)} for {ago(now - run['state_since_ms'])}{_because(run)}"),
        ("this run", done),
        ("rates", rates),
        *(row for each in run["partitions"] for row in _partition_rows(each)),
        *(_onward_row(each) for each in run["onward"]),
        *_slot_rows(run.get("slot")),
        *_trouble_rows(run),
        *_table_rows(run),
    ]


def _because(run: dict[str, Any]) -> str:
    """Return what a pipeline that connects anew failed with last."""
    from rich.markup import escape

    failure = run.get("last_failure")
    if run["state"] != "reconnecting" or failure is None:
        return ""
    return f": {failure['code']} {escape(failure['problem'])}"


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
    if run["left_out"] or run["dead_letters"]:
        left = f"{run['left_out']:,} events, {run['dead_letters']:,} of them kept as dead letters"
        found.append(("left out", f"[yellow]{left}[/]"))
    if run["open_gaps"]:
        found.append(("open gaps", f"[red]{run['open_gaps']:,}[/]: waltap repair closes them"))
    for failure in run["failures"][:FAILURES] or filter(None, [run["last_failure"]]):
        often = f", {failure['times']:,} times" if failure["times"] > 1 else ""
        went_on = ", the run went on" if failure["retried"] else ""
        when = f"{ago(run['at_ms'] - failure['at_ms'])} ago{often}{went_on}"
        what = f"{failure['code']} {when}: {failure['problem']}"
        found.append(("failure", f"[yellow]{escape(what)}[/]"))
        if failure["remedy"]:
            found.append(("", f"[dim]{escape(failure['remedy'])}[/]"))
    for change in run["schema_changes"][:FAILURES]:
        when = ago(run["at_ms"] - change["at_ms"])
        found.append(("schema change", escape(f"{change['table']} {change['what']}, {when} ago")))
    return found


def _onward_row(stage: dict[str, Any]) -> tuple[str, str]:
    from rich.markup import escape

    behind = "has everything" if stage["current"] else f"{size(stage['lag_bytes'])} behind the sink"
    late = f", its last commit is {ago(stage['lag_ms'])} old" if stage["lag_ms"] else ""
    stopped = [each for each in stage["tables"] if each["failed"]]
    stands = f"; {len(stopped):,} tables stand still: {stopped[0]['failed']}" if stopped else ""
    problem = f"; {stage['problem']}" if stage["problem"] else ""
    text = f"{stage['lsn'] or 'nothing yet'}, {behind}{late}"
    colour = "yellow" if stopped or problem else ""
    told = escape(f"{text}{stands}{problem}")
    return escape(stage["stage"]), f"[{colour}]{told}[/]" if colour else told


def _table_rows(run: dict[str, Any]) -> "list[tuple[str, str]]":
    from rich.markup import escape

    found = []
    for table in run["snapshot"]:
        if not table["complete"]:
            whole = "" if table["estimate"] is None else f" of about {table['estimate']:,}"
            found.append((f"reads {escape(table['table'])}", f"{table['rows']:,} rows{whole}"))
    run_of = run["snapshot_run"]
    if run_of and run_of["state"] in {"running", "paused"}:
        waits = run["incremental"]["queued"] if run["incremental"] else 0
        more = f", {waits:,} tables wait" if waits else ""
        seconds = ago(run_of["seconds"] * 1000)
        found.append((f"{run_of['kind']} snapshot", f"{run_of['state']} for {seconds}{more}"))
    read = sum(table["complete"] for table in run["snapshot"])
    if read:
        found.append(("snapshot", f"{read:,} tables read"))
    busiest = sorted(run["tables"], key=lambda each: each["committed_ms"], reverse=True)
    for each in busiest[:BUSY]:
        if each["committed_ms"]:
            counts = (
                f"{each['creates']:,} inserts, {each['updates']:,} updates, "
                f"{each['deletes']:,} deletes; {ago(run['at_ms'] - each['committed_ms'])} ago at "
                f"{each['commit_lsn']}"
            )
            found.append((escape(each["table"]), counts))
    return [*found, ("tables", _names(run["captured_tables"]))]


def _slot_rows(slot: dict[str, Any] | None) -> "list[tuple[str, str]]":
    from rich.markup import escape

    if slot is None:
        return []
    limit = "" if slot["limit_bytes"] is None else f" of {size(slot['limit_bytes'])}"
    of = {"": "", "budget": " (waltap.wal.budget)", "slot": " (max_slot_wal_keep_size)"}
    kind = of.get(slot["limit_kind"], f" ({slot['limit_kind']})") if limit else ""
    stalled = slot["stalled_seconds_left"]
    rows = [
        ("slot", f"{escape(slot['name'])}: {_health(slot)}"),
        ("WAL kept", f"{size(slot['retained_bytes'])}{limit}{kind} {slot['wal_status']}"),
    ]
    if stalled is not None:
        rows.append(("if it stalls", full_in(stalled)))
    if slot["action"]:
        rows.append(("guardian", f"[yellow]{escape(slot['action'])}[/]"))
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
        return full_in(left) if left > FORESEEN_S else f"[{colour}]{full_in(left)}[/]"
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
