"""Render tables, facts and the status of pipelines for terminals.

Status documents have the form of ``/api/status``.
"""

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from waltap.base.text import FORESEEN_S, ago, counted, full_in, printable, printable_lines, size

Cell = str | Text
Row = tuple[str, Cell]

COLOURS = {"streaming": "green", "snapshot": "green", "failed": "red", "stopped": "dim"}
# Longer lists of names, failures and tables do not fit on a screen.
NAMED = 12
HTML_WIDTH = 120
FAILURES = 3
BUSY = 5


class SafeConsole(Console):
    """A console that escapes unprintable characters of all texts.

    Colours and cursor movements are segments of their own, so they pass.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Continue without notices; raise BrokenPipeError for answers."""
        self.quiet = True
        if not self.stderr:
            raise BrokenPipeError


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str = "",
    right: Iterable[str] = (),
    styles: Sequence[str] = (),
) -> Table:
    """Return a table; a cell that is a plain string has no markup.

    Columns of ``right`` contain numbers. ``styles`` are the styles of the rows.
    """
    made = Table(
        title=Text(printable(title), "bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    numbers = set(right)
    for head in heads:
        made.add_column(head, justify="right" if head in numbers else "left", overflow="fold")
    for number, row in enumerate(rows):
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        made.add_row(*cells, style=styles[number] if styles else None)
    return made


def facts(rows: Iterable[Row], *, title: str = "") -> Table:
    """Return names and values below each other."""
    made = Table(title=Text(printable(title)) if title else None, box=box.SIMPLE, show_header=False)
    for name, value in rows:
        made.add_row(name, Text(value) if isinstance(value, str) else value)
    return made


# --- many pipelines ----------------------------------------------------------------------------------

HEADS = ("pipeline", "state", "events/s", "lag", "lag time", "WAL kept", "slot", "events")


def overview(reports: Sequence[dict[str, Any]], order: str = "name", *, now_ms: int = 0) -> Table:
    """Return one line for each report of a pipeline.

    ``order``: name, lag, rate or state. ``now_ms`` shows how old a stored offset is.
    """
    lines = (_line(each, now_ms) for each in sorted(reports, key=lambda found: _rank(found, order)))
    made = table(HEADS, lines, right=("events/s", "lag", "lag time", "WAL kept", "events"))
    for column in made.columns:
        # A problem instead of the state may be long.
        column.no_wrap = column.header != "state"
    return made


def _rank(report: dict[str, Any], order: str) -> tuple[Any, ...]:
    run, name = report["run"], report["pipeline"]
    if order == "state":
        return "" if run is None else run["state"], name
    if run is None or order == "name":
        return order != "name", name
    value = _largest(run, "lag_bytes") if order == "lag" else _rate(run)
    return False, -(value or 0), name


def _line(report: dict[str, Any], now_ms: int) -> list[Cell]:
    run, name = report["run"], report["pipeline"]
    if run is None:
        stored = report["stored_ms"]
        since = "" if stored is None else f"; offset stored {ago(now_ms - stored)} ago"
        # an error of a profile has a line for each problem
        problem = " ".join(report["problem"].split())
        state = Text(problem, "red") if problem else Text(f"not running{since}", "dim")
        return [name, state, *[""] * 6]
    slot = run.get("slot") or {}
    lag_ms = _largest(run, "lag_ms")
    return [
        name,
        _state(run),
        f"{_rate(run):,.0f}",
        size(_largest(run, "lag_bytes")),
        "" if lag_ms is None else ago(lag_ms),
        size(slot["retained_bytes"]) if slot else "",
        _health(slot) if slot else "",
        f"{run['events']:,}",
    ]


# --- one pipeline ------------------------------------------------------------------------------------


def run_view(run: dict[str, Any]) -> Table:
    """Return the status of a running pipeline."""
    return facts(_rows(run), title=run["pipeline"])


def status_html(run: dict[str, Any]) -> str:
    """Return the status of a running pipeline for a notebook."""
    console = SafeConsole(record=True, file=StringIO(), width=HTML_WIDTH)
    console.print(run_view(run))
    return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def _rows(run: dict[str, Any]) -> Iterator[Row]:
    now = run["at_ms"]
    state = Text.assemble(_state(run), f" for {ago(now - run['state_since_ms'])}")
    failure = run.get("last_failure")
    if run["state"] == "reconnecting" and failure is not None:
        state.append(f": {failure['code']} {failure['problem']}")
    yield "state", state
    yield (
        "this run",
        (
            f"{counted(run['events'], 'event')} ({run['snapshot_rows']:,} from snapshots), "
            f"{counted(run['transactions'], 'transaction')}; started {ago(now - run['started_ms'])} ago"
        ),
    )
    rates = (f"{rate:,.0f}/s over {seconds} s" for seconds, rate in run["events_per_second"])
    yield "rates", ", ".join(rates)
    for each in run["partitions"]:
        yield from _partition_rows(each)
    for each in run["downstream"]:
        yield _downstream_row(each)
    if run.get("slot") is not None:
        yield from _slot_rows(run["slot"])
    yield from _trouble_rows(run)
    yield from _table_rows(run)


def _partition_rows(partition: dict[str, Any]) -> Iterator[Row]:
    label = f" of {partition['name']}" if partition["name"] else ""
    lag_ms = partition["lag_ms"]
    age = "" if lag_ms is None else f"; the last change came {ago(lag_ms)} after its commit"
    yield f"lag{label}", f"{size(partition['lag_bytes'])}{age}"
    yield (
        f"positions{label}",
        (
            f"server {partition['server'] or '?'}, received {partition['received']}, at the sink "
            f"{partition['written']}, durable {partition['durable']}, confirmed {partition['confirmed']}"
        ),
    )


def _downstream_row(stage: dict[str, Any]) -> Row:
    if stage["lsn"]:
        late = f"{size(stage['lag_bytes'])} behind the sink"
        text = f"{stage['lsn']}, {'has everything' if stage['current'] else late}"
    else:
        text = "nothing applied yet"
    if stage["lag_ms"]:
        text += f", its last commit is {ago(stage['lag_ms'])} old"
    suspended = [each for each in stage["tables"] if each["failed"]]
    if suspended:
        text += f"; {counted(len(suspended), 'table')} suspended: {suspended[0]['failed']}"
    if stage["problem"]:
        text += f"; {stage['problem']}"
    return stage["stage"], Text(text, "yellow" if suspended or stage["problem"] else "")


def _slot_rows(slot: dict[str, Any]) -> Iterator[Row]:
    yield "slot", Text.assemble(f"{slot['name']}: ", _health(slot))
    limit = ""
    if slot["limit_bytes"] is not None:
        named = {"budget": "waltap.wal.budget", "slot": "max_slot_wal_keep_size"}
        kind = named.get(slot["limit_kind"], slot["limit_kind"])
        limit = f" of {size(slot['limit_bytes'])}{f' ({kind})' if kind else ''}"
    yield "WAL kept", f"{size(slot['retained_bytes'])}{limit}{wal_status(slot['wal_status'])}"
    if slot["stalled_seconds_left"] is not None:
        yield "if it stalls", full_in(slot["stalled_seconds_left"])
    if slot["action"]:
        yield "slot monitor", Text(slot["action"], "yellow")
    if slot["orphans"]:
        names = Text(", ".join(slot["orphans"]), "yellow")
        yield "orphans", Text.assemble(names, ": no process reads them")


def _trouble_rows(run: dict[str, Any]) -> Iterator[Row]:
    now = run["at_ms"]
    if run["queued_events"] or run["held_bytes"] or run["open_transactions"]:
        yield (
            "buffered",
            (
                f"{counted(run['queued_events'], 'event')}, "
                f"{counted(run['open_transactions'], 'open transaction')} with "
                f"{size(run['held_bytes'])}, {size(run['spilled_bytes'])} of it in files"
            ),
        )
    if run["reconnects"] or run["batch_retries"]:
        again = counted(run["batch_retries"], "repeated write")
        yield "retries", f"{counted(run['reconnects'], 'reconnect')}, {again}"
    if run["left_out"] or run["dead_letters"]:
        omitted = (
            f"{counted(run['left_out'], 'event')}, {run['dead_letters']:,} stored as dead letters"
        )
        yield "left out", Text(omitted, "yellow")
    if run["open_gaps"]:
        gaps = Text(f"{run['open_gaps']:,}", "red")
        yield "open gaps", Text.assemble(gaps, ": waltap repair closes them")
    for failure in run["failures"][:FAILURES] or filter(None, [run["last_failure"]]):
        often = f", {failure['times']:,} times" if failure["times"] > 1 else ""
        retried = ", retried" if failure["retried"] else ""
        when = f"{ago(now - failure['at_ms'])} ago{often}{retried}"
        yield "failure", Text(f"{failure['code']} {when}: {failure['problem']}", "yellow")
        if failure["remedy"]:
            yield "", Text(failure["remedy"], "dim")
    for change in run["schema_changes"][:FAILURES]:
        when = ago(now - change["at_ms"])
        yield "schema change", f"{change['table']} {change['what']}, {when} ago"


def _table_rows(run: dict[str, Any]) -> Iterator[Row]:
    for each in run["snapshot"]:
        if not each["complete"]:
            of_total = "" if each["estimate"] is None else f" of about {each['estimate']:,}"
            yield f"reads {each['table']}", f"{counted(each['rows'], 'row')}{of_total}"
    snapshot = run["snapshot_run"]
    if snapshot and snapshot["state"] in {"running", "paused"}:
        waits = run["incremental"]["queued"] if run["incremental"] else 0
        more = f", {counted(waits, 'table')} waiting" if waits else ""
        spent = ago(snapshot["seconds"] * 1000)
        yield f"{snapshot['kind']} snapshot", f"{snapshot['state']} for {spent}{more}"
    read = sum(each["complete"] for each in run["snapshot"])
    if read:
        yield "snapshot", f"{counted(read, 'table')} read"
    busiest = sorted(run["tables"], key=lambda each: each["committed_ms"], reverse=True)
    for each in busiest[:BUSY]:
        if each["committed_ms"]:
            yield (
                each["table"],
                (
                    f"{counted(each['creates'], 'insert')}, {counted(each['updates'], 'update')}, "
                    f"{counted(each['deletes'], 'delete')}; "
                    f"{ago(run['at_ms'] - each['committed_ms'])} ago at {each['commit_lsn']}"
                ),
            )
    names = run["captured_tables"]
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    yield "tables", f"{len(names):,}: {', '.join(names[:NAMED])}{more}" if names else "0"


def _health(slot: dict[str, Any]) -> Text:
    """Return the forecast in words."""
    if slot["invalidation"]:
        return Text(f"lost: {slot['invalidation']}", "red")
    seconds_left = slot["seconds_left"]
    if seconds_left is not None:
        colour = "" if seconds_left > FORESEEN_S else "red" if seconds_left < 3600 else "yellow"
        return Text(full_in(seconds_left), colour)
    if slot["limit_bytes"] is None:
        return Text("no limit known")
    share = slot["retained_bytes"] / slot["limit_bytes"] if slot["limit_bytes"] > 0 else 1.0
    return Text(f"{share:.0%} of its limit")


def wal_status(word: str) -> str:
    """Return the server's word for the kept WAL, to follow its size."""
    return f", wal_status {word}" if word else ""


def _state(run: dict[str, Any]) -> Text:
    return Text(run["state"], COLOURS.get(run["state"], "yellow"))


def _rate(run: dict[str, Any]) -> float:
    return next((rate for _, rate in run["events_per_second"]), 0.0)


def _largest(run: dict[str, Any], lag: str) -> int | None:
    return max((p[lag] for p in run["partitions"] if p[lag] is not None), default=None)


# --- a pipeline that does not run --------------------------------------------------------------------


def at_rest_view(document: dict[str, Any]) -> Table:
    """Return the stored offset and the slot of a pipeline."""
    return facts(_rows_at_rest(document), title=document["pipeline"])


def _rows_at_rest(document: dict[str, Any]) -> Iterator[Row]:
    offset, slot = document["offset"], document["slot"]
    if offset is None:
        begins = ": the next run begins as snapshot.mode says" if document["resumable"] else ""
        yield "offset", f"none stored{begins}"
    else:
        yield "offset", f"{offset['position']}, snapshot {offset['snapshot']}"
    if slot is None:
        yield "slot", "none"
    else:
        reader = f"read by process {slot['reader_pid']}" if slot["reader_pid"] else "no reader"
        yield "slot", f"{slot['name']} ({slot['decoder']}), {reader}"
        yield "confirmed", f"{slot['confirmed']}, server {slot['server']}"
        yield "lag", size(slot["lag_bytes"])
        yield "WAL kept", f"{size(slot['retained_bytes'])}{wal_status(slot['wal_status'])}"
    if document["orphans"]:
        names = Text(", ".join(document["orphans"]), "yellow")
        more = ": slots without a reader; waltap slot list FILE --orphans"
        yield "orphans", Text.assemble(names, more)
