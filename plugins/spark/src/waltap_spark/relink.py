"""Tables are told that a change log is theirs: for those that were moved before logs had ids."""

import msgspec

from waltap_sinks.changelog import ChangeLog, LogPosition
from waltap_sinks.changelog.continuity import make_log_identity
from waltap_sinks.changelog.errors import ChangeLogOlder
from waltap_spark.errors import TableUnknown
from waltap_spark.output import OutputState, SparkOutput

__all__ = ["adopt"]


def adopt(output: SparkOutput, changelog: ChangeLog) -> OutputState:
    """Let the tables at ``output`` go by the id of ``changelog`` from now on; return the new commit.

    The log must go on exactly where the tables stand: nothing is applied twice, nothing left out. A commit
    that a driver had begun is the next one's still.
    Raises: ChangeLogOlder, ChangeLogRetired, ChangeLogDamaged, OutputInUse, TableUnknown.
    """
    known = output.state()
    if known is None:
        raise TableUnknown(f"there are no tables in {output.location}", known="none yet")
    state = output.open(known.changelog, known.log_id)
    try:
        _require_rest(changelog, state.mark)
        begun = output.begun(state)
        if begun is not None:  # before the commit: it counts where that does not come about, too
            output.intend(msgspec.structs.replace(begun, number=state.number + 2))
        adopted = msgspec.structs.replace(
            state,
            number=state.number + 1,
            changelog=changelog.store.location,
            log_id=make_log_identity(changelog.store),
        )
        output.commit(adopted)
    finally:
        output.close()
    return adopted


def _require_rest(changelog: ChangeLog, mark: LogPosition) -> None:
    """Raises: ChangeLogOlder, ChangeLogRetired, ChangeLogDamaged where the log lacks what comes after
    ``mark``, or never came to it."""
    last, location = changelog.last(), changelog.store.location
    if last is None or last.mark < mark:
        ends = "holds nothing" if last is None else f"ends at {last.mark}"
        problem = f"{location} {ends}, and the tables stand at {mark}"
        raise ChangeLogOlder(problem, path=location, repair="")
    next(changelog.manifests(mark), None)
