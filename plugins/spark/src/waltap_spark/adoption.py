"""Tables are told that a change log is theirs: for those that were moved before logs had ids."""

import msgspec

from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.errors import ChangeLogOlder
from waltap_sinks.changelog.log_identity import make_log_identity
from waltap_spark.errors import TableUnknown
from waltap_spark.output import Output, OutputState

__all__ = ["adopt"]


def adopt(output: Output, changelog: ChangeLog) -> OutputState:
    """Let the tables at ``output`` go by the id of ``changelog`` from now on; return the new commit.

    The log must go on exactly where the tables stand: nothing is applied twice, nothing left out.
    Raises: ChangeLogOlder, ChangeLogRetired, ChangeLogDamaged, OutputInUse, TableUnknown.
    """
    state = output.state()
    if state is None:
        raise TableUnknown(f"there are no tables in {output.location}", known="none yet")
    last = changelog.last()
    location = changelog.store.location
    if last is None or last.mark < state.mark:
        ends = "holds nothing" if last is None else f"ends at {last.mark}"
        raise ChangeLogOlder(
            f"{location} {ends}, and the tables stand at {state.mark}", path=location
        )
    next(changelog.manifests(state.mark), None)  # raises where its chain does not pass the mark
    output.open(state.changelog, state.log_id)
    try:
        adopted = msgspec.structs.replace(
            state,
            number=state.number + 1,
            changelog=location,
            log_id=make_log_identity(changelog.store),
        )
        output.commit(adopted)
    finally:
        output.close()
    return adopted
