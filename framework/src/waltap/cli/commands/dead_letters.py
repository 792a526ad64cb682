"""``waltap dead-letters``: inspect, redeliver and drop undelivered events."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer

from waltap.base.text import ago, printable
from waltap.cli.profile_source import FileArgument, Json, SetOption, Yes, at_rest, overrides, read
from waltap.cli.terminal import answers, command_group, confirm, echo
from waltap.clock import SystemClock
from waltap.config.resolve import resolve
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
from waltap.pipeline.runtime.lock import PipelineLock, PipelineRunning
from waltap.plugins.host import Host
from waltap.ports.offsets.state_folder import DEAD_LETTERS
from waltap.services.control import RedeliveryRequest, RedeliveryUndone, ask
from waltap.services.dead_letters.dead_letter import DeadLetter
from waltap.services.dead_letters.store import DeadLetterStore
from waltap.services.monitor.views import table

WAIT_S = 60.0
LONGEST_S = 3600.0
"""How long a running pipeline may take for dead letters once it has begun."""

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]…", help="Dead letters; by default all.")
]

dead_letters = command_group(
    "Show events that could not be delivered; deliver them again, or drop them."
)


@dead_letters.command("list")
def list_dead_letters(file: FileArgument, set_: SetOption = None, as_json: Json = False) -> None:
    """List dead letters: id, table, operation, code, attempts, state."""
    entries = _store(file, set_).all()
    if as_json:
        echo(json.dumps([each.as_dict() for each in entries], indent=2))
        return
    if not entries:
        echo("there are no dead letters")
        return
    now = time.time() * 1000
    rows = [
        (
            each.id,
            each.op or "",
            each.table or "",
            f"{ago(now - each.last_ms)} ago",
            str(each.attempts),
            f"redelivered {ago(now - each.redelivered_ms)} ago" if each.redelivered_ms else "waits",
            f"{each.code} {each.reason}",
        )
        for each in entries
    ]
    heads = ("id", "op", "table", "last tried", "attempts", "state", "reason")
    answers().print(table(heads, rows, right=("attempts",)))


@dead_letters.command()
def show(
    file: FileArgument,
    ids: Ids = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="What the server sent, too: it has no masks.")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Print dead letters as JSON: the reason, the event, the refused record."""
    for each in _chosen(_store(file, set_), ids):
        shown = each.as_dict()
        if raw:
            shown["change"] = msgspec.to_builtins(each.change)
        echo(json.dumps(shown, indent=2, ensure_ascii=False))


@dead_letters.command()
def redeliver(
    file: FileArgument,
    ids: Ids = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also dead letters that were redelivered before.")
    ] = False,
    re_render: Annotated[
        bool,
        typer.Option(
            "--re-render", help="Use the present transforms and format, not the old record."
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            max=3600,
            metavar="SECONDS",
            help="How long to wait until a running pipeline begins with it.",
        ),
    ] = WAIT_S,
    set_: SetOption = None,
) -> None:
    """Deliver dead letters, oldest first, to the sinks that refused them.

    The pipeline may run: then it does so between two transactions. A redelivered dead letter is marked
    and skipped the next time. Exit code 1: a sink refused one again; it stays, with its reason.
    """
    entries = _chosen(_store(file, set_), ids)
    waiting = [each for each in entries if again or each.redelivered_ms is None]
    delivered = refused = 0
    for name, why in _redelivered(
        file, set_, waiting, again=again, re_render=re_render, wait_s=wait
    ):
        refused, delivered = refused + bool(why), delivered + (not why)
        echo(f"{printable(name)}  {f'refused: {printable(why)}' if why else 'delivered'}")
    echo(f"{delivered} delivered, {refused} refused", err=True)
    if refused:
        raise typer.Exit(1)


@dead_letters.command()
def drop(
    file: FileArgument,
    ids: Ids = None,
    redelivered: Annotated[
        bool, typer.Option("--redelivered", help="Only redelivered letters.")
    ] = False,
    yes: Yes = False,
    set_: SetOption = None,
) -> None:
    """Forget letters. The pipeline may run."""
    store = _store(file, set_)
    chosen = [each for each in _chosen(store, ids) if each.redelivered_ms or not redelivered]
    undelivered = sum(each.redelivered_ms is None for each in chosen)
    if not chosen:
        echo("there is nothing to drop")
        return
    confirm(
        f"Drop {len(chosen)} dead letters, {undelivered} of them not delivered. Continue?", yes=yes
    )
    echo(f"{store.drop({each.id for each in chosen})} dropped")


def _store(file: str, set_: list[str] | None) -> DeadLetterStore:
    profile, _host = at_rest(file, set_)
    return DeadLetterStore(profile.state_dir / DEAD_LETTERS)


def _chosen(store: DeadLetterStore, ids: Sequence[str] | None) -> list[DeadLetter]:
    """Return the dead letters of these ids. Raises: ConfigurationError."""
    entries = store.all()
    unknown = set(ids or ()) - {each.id for each in entries}
    if unknown:
        problems = [
            PropertyProblem(
                "ID",
                "is no dead letter",
                value=each,
                allowed="what `waltap dead-letters list` shows",
            )
            for each in sorted(unknown)
        ]
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    return [each for each in entries if not ids or each.id in ids]


def _redelivered(
    file: str,
    set_: list[str] | None,
    entries: Sequence[DeadLetter],
    *,
    again: bool,
    re_render: bool,
    wait_s: float,
) -> Iterator[tuple[str, str]]:
    """Deliver dead letters, here or by the process that runs the pipeline.

    Yields each id and the reason of a refusal, "" if delivered. Raises: SinkError, OffsetError,
    RedeliveryUndone.
    """
    from waltap.pipeline.delivery.redelivery import Redelivery
    from waltap.pipeline.engine.build import PipelineStages

    if not entries:
        return
    host, raw = Host(), read(file)
    profile = resolve(raw, host, overrides=overrides(raw, set_))
    stages = PipelineStages(profile, host, run_id="redeliver")
    try:
        with PipelineLock(stages.profile.state_dir):
            known = {each.id: each for each in stages.dead_letters.store.all()}
            those = [known[each.id] for each in entries if each.id in known]
            store = stages.dead_letters.store
            redelivery = Redelivery(store, stages.branches, stages.store, SystemClock())
            yield from redelivery.run(those, again=again, re_render=re_render)
    except PipelineRunning:
        request = RedeliveryRequest(
            ids=tuple(each.id for each in entries),
            again=again,
            re_render=re_render,
            wait_ms=round(wait_s * 1000),
        )
        answer = ask(stages.profile.state_dir, request, patience_s=LONGEST_S)
        yield from (answer.dead_letters or {}).items()
        if not answer.ok or not answer.accepted:
            raise RedeliveryUndone(answer.reason) from None
    finally:
        stages.close()
