"""Changes in pieces, each in a savepoint: what the target takes is applied, what it refuses is named."""

from collections.abc import Callable, Sequence

from waltap.dead_letters.bisect import Part, failing
from waltap.errors import RecordError, SinkError, WaltapError
from waltap.sink import RecordsRefused, RefusedEvent
from waltap.source.position import lsn_text
from waltap.transactions.transaction import SnapshotRows, TransactionPart
from waltap_sinks.sql.errors import SqlConstraintViolated, SqlValueUnfit
from waltap_sinks.sql.target import SqlTarget

__all__ = ["is_of_a_record", "place_of", "take_in_pieces"]


def is_of_a_record(failure: Exception) -> bool:
    """Tell whether a failure is one change's fault: the target, as it is, takes others."""
    return isinstance(failure, SqlConstraintViolated | SqlValueUnfit | RecordError)


def place_of(part: Part, at: int = 0) -> str:
    """Return where a change stands, for people."""
    if isinstance(part, TransactionPart):
        return f"{lsn_text(part.commit_lsn)}, change {part.numbers()[at]}"
    return "a snapshot"


def take_in_pieces(
    parts: Sequence[TransactionPart | SnapshotRows],
    apply: Callable[[Part], None],
    *,
    target: SqlTarget,
    failure: Callable[[Exception, str], SinkError],
    forget: Callable[[], None],
) -> None:
    """Apply ``parts`` in the transaction that is open: what is taken as a whole goes in as a whole, of the
    rest its halves, in order. ``forget`` is called when something was undone.

    Raises: RecordsRefused, and nothing of it was applied; SinkError for what is not a change's fault.
    """

    def attempt(piece: Part) -> None:
        try:
            with target.attempt():
                apply(piece)
        except Exception as error:
            forget()
            told = error if isinstance(error, RecordError) else failure(error, place_of(piece))
            if not is_of_a_record(told):
                raise told from error
            raise RecordError(told.problem) from told

    try:
        with target.attempt():
            found = failing(parts, attempt)
            if found:
                raise RecordsRefused(  # noqa: TRY301 - the block undoes what was applied
                    [_refused(parts, *each) for each in found.items()]
                )
    except RecordsRefused:
        forget()
        raise


def _refused(
    parts: Sequence[TransactionPart | SnapshotRows], where: tuple[int, int], error: RecordError
) -> RefusedEvent:
    reason = error.__cause__
    assert isinstance(reason, WaltapError)
    number, at = where
    part = parts[number]
    if isinstance(part, SnapshotRows):
        return RefusedEvent(rows=part, index=at, error=reason)
    return RefusedEvent(change=part.changes[at], error=reason)
