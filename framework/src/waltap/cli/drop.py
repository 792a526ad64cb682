"""``waltap drop``: removes what a pipeline made, after showing it; what it delivered stays."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.confirm import confirm
from waltap.cli.live_console import echo
from waltap.cli.profile_source import FileArgument, SetOption, at_rest

if TYPE_CHECKING:
    from waltap.ports.offsets.owned_objects import OwnedObject

__all__ = ["command"]


def command(
    file: FileArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    set_: SetOption = None,
) -> None:
    """Remove a pipeline: the slot and publications that it made, and its stored state.

    Shows them first. The sink's output stays, and so does a slot that was taken over: `waltap slot
    drop` removes that. What the pipeline made in another database, where the profile led before, stays
    too, and is remembered. Refused while the pipeline runs.
    """
    from waltap.cli.connection import connected
    from waltap.pipeline.runtime.lock import PipelineLock
    from waltap.ports.offsets.state_folder import BELONGINGS, own_files

    profile, host = at_rest(file, set_)
    folder = profile.engine.state_dir / profile.name
    with PipelineLock(folder) as lock, connected(profile, host) as (connector, stages):
        offset = stages.store.load()
        known = connector.belongings(offset)
        elsewhere = connector.belongings_elsewhere()
        files = [path for path in own_files(folder) if not elsewhere or path.name != BELONGINGS]
        _show(known, elsewhere, files, folder)
        if not (offset or files or any(entry.made for entry in known)):
            echo(f"{profile.name}: there is nothing to remove")
            lock.leave_nothing()
            return
        confirm("Remove all of this? Changes that were not delivered yet are lost.", yes=yes)
        for entry in reversed(known):  # slots before publications: what the server refuses ends it
            if entry.made:
                connector.drop(entry)
        stages.store.clear()
        stages.belongings.forget(known)
        for path in files:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        lock.leave_nothing()
    echo(f"{profile.name}: removed; the sink keeps what was delivered")


def _show(
    known: "list[OwnedObject]", elsewhere: "list[OwnedObject]", files: list[Path], folder: Path
) -> None:
    from waltap.ports.offsets.state_folder import BELONGINGS, DEAD_LETTERS, LOCK

    reasons = {BELONGINGS: "which tells of them", DEAD_LETTERS: "which nothing else has"}
    for entry in known:
        if entry.made:
            echo(f"{entry.kind} {entry.name} in database {entry.database}")
        else:
            echo(f"(stays: {entry.kind} {entry.name}, which was there before)")
    for entry in elsewhere:
        echo(
            f"(stays: {entry.kind} {entry.name} in database {entry.database} of system {entry.system_id}, "
            "where the profile does not lead; `waltap drop` with a profile that does removes it)"
        )
    for path in files:
        echo(f"state {path}")
    for path in sorted(folder.iterdir()):
        if path not in files and path.name != LOCK:
            echo(f"(stays: {path}, {reasons.get(path.name, 'which the sink keeps')})")
