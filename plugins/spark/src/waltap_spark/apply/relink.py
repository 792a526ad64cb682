"""Link tables to their moved change log.

Tables that were moved before logs had ids cannot recognise their log.
"""

import msgspec

from waltap_sinks.changelog import ChangeLog, LogPosition
from waltap_sinks.changelog.continuity import make_log_identity
from waltap_sinks.changelog.errors import ChangeLogOlder
from waltap_spark.errors import TableUnknown
from waltap_spark.state.output import OutputState, SparkOutput


def relink(output: SparkOutput, changelog: ChangeLog) -> OutputState:
    """Record the id of ``changelog`` in the tables; return the new commit.

    The log must continue exactly at the tables' position, so that no change is applied twice or
    left out. A begun commit becomes the commit after this one. Raises: ChangeLogOlder,
    ChangeLogRetired, ChangeLogDamaged, OutputInUse, TableUnknown.
    """
    known = output.state()
    if known is None:
        raise TableUnknown(f"there are no tables in {output.location}", known="none yet")
    state = output.open(known.changelog, known.log_id)
    try:
        _require_rest(changelog, state.log_position)
        begun = output.begun(state)
        if (
            begun is not None
        ):  # written before the commit: the next driver needs it even if the commit fails
            output.intend(msgspec.structs.replace(begun, number=state.number + 2))
        relinked = msgspec.structs.replace(
            state,
            number=state.number + 1,
            changelog=changelog.store.location,
            log_id=make_log_identity(changelog.store),
        )
        output.commit(relinked)
    finally:
        output.close()
    return relinked


def _require_rest(changelog: ChangeLog, log_position: LogPosition) -> None:
    """Require that the log contains ``log_position`` and everything after it.

    Raises: ChangeLogOlder, ChangeLogRetired, ChangeLogDamaged.
    """
    last, location = changelog.last(), changelog.store.location
    if last is None or last.log_position < log_position:
        ends = "holds nothing" if last is None else f"ends at {last.log_position}"
        problem = f"{location} {ends}, and the tables stand at {log_position}"
        raise ChangeLogOlder(problem, path=location, repair="")
    next(changelog.manifests(log_position), None)
