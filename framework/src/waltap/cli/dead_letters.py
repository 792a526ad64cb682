"""``waltap dead-letters``: events that could not be delivered: look at them, deliver them, drop them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.profile_source import FileArgument, SetOption, at_rest, overrides, read
from waltap.cli.question import confirm
from waltap.errors import COMMAND_LINE, ConfigurationError, Problem

if TYPE_CHECKING:
    from waltap.dead_letters.letter import Letter
    from waltap.dead_letters.replay import Replay
    from waltap.dead_letters.store import LetterStore
    from waltap.pipeline.setup import Stages

__all__ = ["command"]

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]…", help="Letters; without any, all.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

command = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at events that could not be delivered; deliver them after all, or drop them.",
)


@command.command("list")
def list_letters(file: FileArgument, set_: SetOption = None, as_json: Json = False) -> None:
    """Print a line for each letter: id, table, operation, code, attempts, whether it was replayed."""
    letters = _store(file, set_).letters()
    if as_json:
        typer.echo(json.dumps([each.told() for each in letters], indent=2))
        return
    for each in letters:
        state = (
            f"replayed {_time(each.replayed_ms)}"
            if each.replayed_ms
            else f"tried {each.attempts} times"
        )
        typer.echo(
            f"{each.id}  {each.op or '-'} {each.table or '-'}  {_time(each.last_ms)}  {state}  "
            f"{each.code} {each.reason}"
        )


@command.command()
def show(
    file: FileArgument,
    ids: Ids = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="What the server sent, too: it has no masks.")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Print letters as JSON: why and where, the event, and the record that was refused."""
    import msgspec

    for each in _chosen(_store(file, set_), ids):
        told = each.told()
        if raw:
            told["change"] = msgspec.to_builtins(each.change)
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))


@command.command()
def replay(
    file: FileArgument,
    ids: Ids = None,
    again: Annotated[
        bool, typer.Option("--again", help="Those that were replayed before, too.")
    ] = False,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew", help="By the transforms and the format of now, not the record as it was."
        ),
    ] = False,
    set_: SetOption = None,
) -> None:
    """Deliver letters to the sinks that refused them. Refused while the pipeline runs.

    The oldest comes first. A letter that was replayed is marked, and left alone the next time. Exit code
    1 when one is refused again; it stays, with its reason.
    """
    from waltap.pipeline.lock import PipelineLock

    stages = _stages(file, set_)
    refused = 0
    with PipelineLock(stages.state_dir):
        store = stages.desk.store
        waiting = [each for each in _chosen(store, ids) if again or each.replayed_ms is None]
        for sink in dict.fromkeys(each.sink for each in waiting):
            those = [_without_record(e) if anew else e for e in waiting if e.sink == sink]
            for found in _replay(stages, sink).run(those):
                refused += found.error is not None
                became = "delivered" if found.error is None else f"refused: {found.error.problem}"
                typer.echo(f"{found.letter.id}  {became}")
    typer.echo(f"{len(waiting) - refused} delivered, {refused} refused", err=True)
    if refused:
        raise typer.Exit(1)


@command.command()
def drop(
    file: FileArgument,
    ids: Ids = None,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Those only that were replayed.")
    ] = False,
    yes: Yes = False,
    set_: SetOption = None,
) -> None:
    """Forget letters. The pipeline may run."""
    store = _store(file, set_)
    chosen = [each for each in _chosen(store, ids) if each.replayed_ms or not replayed]
    left = sum(each.replayed_ms is None for each in chosen)
    if not chosen:
        typer.echo("there is nothing to drop")
        return
    confirm(f"Drop {len(chosen)} letters, {left} of them not delivered. Go on?", yes=yes)
    typer.echo(f"{store.drop({each.id for each in chosen})} dropped")


def _store(file: str, set_: list[str] | None) -> "LetterStore":
    from waltap.dead_letters.store import LetterStore
    from waltap.offsets.state_folder import DEAD_LETTERS

    profile, _host = at_rest(file, set_)
    return LetterStore(profile.engine.state_dir / profile.name / DEAD_LETTERS)


def _chosen(store: "LetterStore", ids: Sequence[str] | None) -> "list[Letter]":
    """Return the letters of these ids. Raises: ConfigurationError where there is none of one."""
    letters = store.letters()
    unknown = set(ids or ()) - {each.id for each in letters}
    if unknown:
        problems = [
            Problem(
                "ID", "is no letter", value=each, allowed="what `waltap dead-letters list` shows"
            )
            for each in sorted(unknown)
        ]
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    return [each for each in letters if not ids or each.id in ids]


def _stages(file: str, set_: list[str] | None) -> "Stages":
    from waltap.config.resolve import resolve
    from waltap.host import Host
    from waltap.pipeline.setup import build

    host, raw = Host(), read(file)
    return build(resolve(raw, host, overrides=overrides(raw, set_)), host, run_id="replay")


def _replay(stages: "Stages", sink: str) -> "Replay":
    """Return what replays the letters of a sink. Raises: ConfigurationError where it is gone."""
    from waltap.clock import SystemClock
    from waltap.dead_letters.replay import Replay
    from waltap.source.position import Positions

    outlet = next((each for each in stages.outlets if each.name == sink), None)
    if outlet is None and (sink or stages.outlets):
        named = ", ".join(each.name for each in stages.outlets) or "the profile's only one"
        problem = Problem(
            "sinks", f"letters are of the sink {sink!r}, which is not there", allowed=named
        )
        raise ConfigurationError([problem])
    chain = stages.chain if outlet is None else outlet.chain
    form = stages.format if outlet is None else outlet.format
    clock, offset = SystemClock(), stages.store.load()
    return Replay(
        store=stages.desk.store,
        sink=stages.sink if outlet is None else outlet.make(),
        make=lambda batch: chain.made(batch, form, clock.time_ns()),
        stored=Positions() if offset is None else offset.positions,
        now_ms=lambda: clock.time_ns() // 1_000_000,
    )


def _without_record(letter: "Letter") -> "Letter":
    import msgspec

    return msgspec.structs.replace(letter, record=None) if letter.change is not None else letter


def _time(ms: int | None) -> str:
    return datetime.fromtimestamp((ms or 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
