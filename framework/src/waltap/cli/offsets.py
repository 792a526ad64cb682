"""``waltap offsets``: show, move or forget the stored position of a pipeline."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from waltap.base.text import size
from waltap.cli.confirm import confirm
from waltap.cli.live_console import echo
from waltap.cli.offsets_debezium import export_to, import_from
from waltap.cli.profile_source import (
    FileArgument,
    SetOption,
    any_sink,
    at_rest,
    overrides,
    read,
)
from waltap.errors import (
    COMMAND_LINE,
    ConfigurationError,
    OffsetError,
    PropertyProblem,
    WaltapError,
)

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.pipeline.setup.build import PipelineStages
    from waltap.ports.offsets.offset import Offset

__all__ = ["command"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

command = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show, move or forget the stored position of a pipeline; take it from Debezium, or give it back.",
)
command.command("import")(import_from)
command.command("export")(export_to)


@command.command()
def show(file: FileArgument, set_: SetOption = None) -> None:
    """Print what is stored, as JSON."""
    import msgspec

    from waltap.changes.transactions.position import SOLE

    profile, stages = _at_rest(file, set_)
    offset = stages.store.load()
    if offset is None:
        echo(f"{profile.name}: no offset is stored", err=True)
        raise typer.Exit(1)
    document = {"pipeline": profile.name, "text": str(offset.positions)}
    stored = msgspec.to_builtins(offset)
    if list(stored["partitions"]) == [SOLE]:  # the normal case needs no name
        stored = {**stored.pop("partitions")[SOLE], **stored}
    echo(json.dumps({**document, **stored}, indent=2))


@command.command("set")
def set_position(
    file: FileArgument,
    lsn: Annotated[
        str, typer.Argument(metavar="LSN", help="The end of a transaction: 16/B374D848.")
    ],
    yes: Yes = False,
    set_: SetOption = None,
) -> None:
    """Move the stored position. Forwards skips changes for good; backwards delivers them again.

    Slot and sink have a say in that: what they make of the position is told before anything is stored.
    """
    from waltap.changes.transactions.position import Position, lsn_text, parse_lsn
    from waltap.pipeline.runtime.lock import PipelineLock
    from waltap.ports.offsets.offset import NothingStored

    try:
        position = Position(parse_lsn(lsn))
    except ValueError as cause:
        problem = PropertyProblem("LSN", "cannot be read", value=lsn, allowed="e.g. 16/B374D848")
        raise ConfigurationError([problem], origin=COMMAND_LINE) from cause
    profile, stages = _with_sink(file, set_)
    with PipelineLock(stages.state_dir):
        store = stages.store
        offset = store.load()
        if offset is None:
            raise NothingStored(f"no offset is stored for {profile.name}")
        if len(offset.partitions) > 1:
            names = ", ".join(offset.partitions)
            problem = PropertyProblem(
                "LSN", f"is of one slot, and the pipeline reads several: {names}"
            )
            raise ConfigurationError([problem], origin=COMMAND_LINE)
        distance = position.end_lsn - offset.sole.position.end_lsn
        effect = (
            f"skips {size(distance)} of WAL: changes in them are never delivered"
            if distance >= 0
            else f"goes back {size(-distance)} of WAL: changes in them are delivered again, as far as "
            "the slot still has them"
        )
        moved = offset.with_sole(position=position, previous_end_lsn=None)
        if distance < 0:  # the sink may have been restored to where it ends now
            moved = moved.with_sole(held=msgspec.UNSET)
        if distance > 0:
            moved = msgspec.structs.replace(moved, sink="")  # it does not go on where the sink ends
        for note in _what_it_comes_to(profile, stages, moved, back=distance < 0):
            echo(f"{profile.name}: {note}", err=True)
        question = (
            f"{profile.name}: from {offset.sole.position} to {lsn_text(position.end_lsn)} {effect}"
        )
        confirm(f"{question}. Go on?", yes=yes)
        store.store(moved)
        echo(f"{profile.name}: stored {position}")


@command.command()
def clear(file: FileArgument, yes: Yes = False, set_: SetOption = None) -> None:
    """Forget the stored position: the next run starts as if it were the first."""
    from waltap.pipeline.runtime.lock import PipelineLock

    profile, stages = _at_rest(file, set_)
    with PipelineLock(stages.state_dir):
        store = stages.store
        try:
            offset = store.load()
        except OffsetError as error:  # what cannot be read can be forgotten all the same
            confirm(f"{profile.name}: {error.problem}; forget it. Go on?", yes=yes)
        else:
            if offset is None:
                echo(f"{profile.name}: no offset is stored")
                return
            confirm(f"{profile.name}: forget the offset {offset.positions}. Go on?", yes=yes)
            _keep_slot(stages, offset)
        store.clear()
        echo(f"{profile.name}: forgotten")


def _what_it_comes_to(
    profile: "Profile", stages: "PipelineStages", moved: "Offset", *, back: bool
) -> Iterator[str]:
    """Yield what would keep the next start from going on at ``moved``, as far as can be known."""
    from waltap.cli.connection import connected
    from waltap.plugins.host import Host

    if back and stages.sink.capabilities.exactly_once:
        yield (
            f"the sink {profile.sink.spec.name} keeps the position with its data, and a start goes on "
            "from the later one: going back has no effect as long as that data is there"
        )
    try:
        with connected(profile, Host()) as (connector, _):
            lost = connector.lost(moved)
    except WaltapError as error:
        yield f"the server could not be asked whether it can go on from there: {error.problem}"
        return
    if lost is not None:
        yield f"the next start will refuse this position ({lost.code}): {lost.problem}"


def _keep_slot(stages: "PipelineStages", offset: "Offset") -> None:
    """Remember whose slot it is when the offset, which told so, goes."""
    from waltap.ports.offsets.owned_objects import OwnedObject

    for each in offset.partitions.values():
        entry = OwnedObject(
            kind="slot",
            name=each.slot,
            system_id=each.system_id,
            database=each.database,
            made=each.slot_created_lsn > 0,
        )
        if stages.belongings.find(*entry.place) is None:
            stages.belongings.keep(entry)


def _at_rest(file: str, set_: list[str] | None) -> "tuple[Profile, PipelineStages]":
    from waltap.pipeline.setup.build import build

    profile, host = at_rest(file, set_)
    return profile, build(profile, host, run_id="")


def _with_sink(file: str, set_: list[str] | None) -> "tuple[Profile, PipelineStages]":
    """Return the stages with the sink, which has a say in the position."""
    from waltap.config.resolve import resolve
    from waltap.pipeline.setup.build import build
    from waltap.plugins.host import Host

    host, raw = Host(), read(file)
    profile = resolve(raw, host, sink=any_sink(raw), overrides=overrides(raw, set_))
    return profile, build(profile, host, run_id="")
