"""``waltap changelog``: look into a change log, and clean it up."""

import datetime as dt
import json
import time
from typing import Annotated

import typer

from waltap.base.text import ago, duration
from waltap.changes.transactions.position import lsn_text
from waltap.cli.profile_source import Json
from waltap.cli.terminal import answers, command_group, echo
from waltap.services.monitor.views import table
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_sinks.changelog.manifest import LogPosition, Manifest, bucket_of
from waltap_sinks.changelog.reader import HOLD_S, ChangeLog
from waltap_sinks.changelog.verification import named_store

application = command_group("Show a change log and its readers; remove old files.")

PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Folder or URI of the change log or of the sink, or the profile that writes it.",
    ),
]
HoursOption = Annotated[
    float,
    typer.Option("--older-than-hours", metavar="N", min=0, help="Only files written before that."),
]


@application.command("list")
def list_manifests(
    path: PathArgument,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="Most manifests to show.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show the newest manifests: position, last commit, transactions, rows per table."""
    manifests = _log(path).newest(last)
    if as_json:
        document = [
            {
                "position": str(step.log_position),
                "lsn": lsn_text(step.log_position.end_lsn),
                "last_commit_ms": _commit_ms(step),
                "transactions": step.transactions,
                "rows": step.rows,
                "tables": _tables(step),
            }
            for step in manifests
        ]
        echo(json.dumps(document, indent=2))
        return
    now = time.time() * 1000
    rows = [
        (
            str(step.log_position),
            lsn_text(step.log_position.end_lsn),
            "" if (at := _commit_ms(step)) is None else f"{ago(now - at)} ago",
            f"{step.transactions:,}",
            f"{step.rows:,}",
            _tables(step),
        )
        for step in manifests
    ]
    heads = ("position", "up to LSN", "last commit", "transactions", "rows", "tables")
    shown = table(heads, rows, right=("transactions", "rows"))
    shown.columns[0].no_wrap = True
    answers().print(shown)


@application.command()
def expire(
    path: PathArgument,
    applied: Annotated[
        str,
        typer.Option(
            "--applied",
            metavar="POSITION",
            help="The position up to which every reader has applied it.",
        ),
    ],
    older_than_hours: HoursOption = 24.0,
) -> None:
    """Remove applied manifests with their segments; the newest always stays.

    The spark sink does this by itself; see changelog.retention.hours.
    """
    log, log_position = _log(path), _log_position(applied)
    echo(f"{log.expire(log_position, _before(older_than_hours)):,} manifests removed")


@application.command()
def readers(
    path: PathArgument,
    register: Annotated[
        str | None,
        typer.Option(
            "--register", metavar="NAME", help="Keep changes that this reader has not read."
        ),
    ] = None,
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NAME", help="Stop waiting for this reader.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="POSITION", help="Its position; by default the log's end."),
    ] = None,
    hold_hours: Annotated[
        float | None,
        typer.Option(
            "--hold-hours",
            metavar="N",
            min=0,
            help="Hours that the log waits for a silent reader, "
            f"by default {HOLD_S / 3600:g} or as before.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List readers and their positions; register or forget one.

    Changes that a registered reader has not read stay in the log, for --hold-hours of silence.
    """
    log = _log(path)
    if forget is not None:
        log.readers.forget(forget)
    if register is not None:
        log_position = log.end if at is None else _log_position(at)
        hold_s = None if hold_hours is None else hold_hours * 3600
        log.readers.register(register, log_position, hold_s=hold_s, by="the command line")
    now, found = time.time(), log.readers.all()
    if as_json:
        documents = [
            {
                "reader": each.name,
                "position": str(each.log_position),
                "seen": dt.datetime.fromtimestamp(each.seen, dt.UTC).isoformat(timespec="seconds"),
                "waits_s": round(each.seen + each.hold_s - now) if each.holds(now) else 0,
                "by": each.by,
            }
            for each in found
        ]
        echo(json.dumps(documents, indent=2))
        return
    if not found:
        echo("no reader is registered")
        return
    rows = [
        (
            each.name,
            str(each.log_position),
            f"{duration(now - each.seen)} ago",
            duration(each.seen + each.hold_s - now) if each.holds(now) else "no longer",
            each.by,
        )
        for each in found
    ]
    shown = table(("reader", "has read up to", "last seen", "the log waits", "registered by"), rows)
    shown.columns[1].no_wrap = True
    answers().print(shown)


@application.command()
def vacuum(path: PathArgument, older_than_hours: HoursOption = 24.0) -> None:
    """Remove segments that no manifest names: leftovers of crashes.

    Stop the pipeline before.
    """
    echo(f"{_log(path).vacuum(_before(older_than_hours)):,} segments removed")


def _commit_ms(step: Manifest) -> int | None:
    """Return when its last transaction was committed, since 1970 UTC."""
    return None if step.last_commit_ts is None else step.last_commit_ts // 1000


def _log(path: str) -> ChangeLog:
    """Return the change log at or below ``path``.

    Raises: ChangeLogMissing, and as `named_store`.
    """
    log = ChangeLog(named_store(path))
    if log.exists():
        return log
    # the spark sink's folder has the log beside the tables, and people know that folder
    below = log.logs_below()
    if len(below) == 1:
        return below[0]
    place = _place(log)
    if below:
        raise ChangeLogMissing(f"{place} has several change logs: {', '.join(map(_place, below))}")
    raise ChangeLogMissing(f"{place} is not a change log, and no folder in it is one")


def _place(log: ChangeLog) -> str:
    return log.store.uri("").rstrip("/")


def _before(hours: float) -> str:
    return bucket_of(dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours))


def _log_position(text: str) -> LogPosition:
    try:
        return LogPosition.parse(text)
    except ValueError as cause:
        raise typer.BadParameter(
            f"{text} is not a position; `waltap changelog list` shows them", param_hint="--applied"
        ) from cause


def _tables(step: Manifest) -> str:
    rows: dict[str, int] = {}
    for entry in step.tables:
        rows[entry.name] = rows.get(entry.name, 0) + entry.rows
    text = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    if step.snapshot is not None:
        text += f" (snapshot {step.snapshot.snapshot_id})"
    return text
