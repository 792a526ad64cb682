"""Run transforms of records in order, each under its predicate."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from waltap.changes.transactions.position import lsn_text
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordPredicate,
    RecordTransform,
    RecordUnfit,
)
from waltap.encoders.json.converter import plain_json
from waltap.errors import RecordError, RetryVerdict, StopRequested, WaltapError

# Characters of a key in a message.
SHOWN_MAX = 200


class RecordTransformFailed(RecordError):
    """A transform of records failed; the batch was not delivered.

    It raised, or returned an object that is no record. The position did not move.
    """

    code = "WT-3204"
    retry = RetryVerdict.NEVER
    remedy = (
        "Correct the properties of the transform {transform}, keep such records from it by a predicate "
        "(predicate, negate), or take it out of the profile."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStep:
    """One transform of a pipeline and the records it gets."""

    # The transform's name in the profile.
    label: str
    transform: RecordTransform
    # The transform gets records for which this is true; without a predicate, all records.
    predicate: RecordPredicate | None = None
    # With negate it gets the other records.
    negate: bool = False

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the records for the next step."""
        if self.predicate is None:
            return self.transform(records)
        predicate, negate = self.predicate, self.negate
        out: list[ConnectRecord] = []
        # Runs of equal predicate keep the records in order.
        for concerned, group in groupby(records, lambda each: bool(predicate(each)) is not negate):
            some = list(group)
            out += self.transform(some) if concerned else some
        return out


class RecordStage:
    """Call the transforms with the records of a batch.

    Raises: RecordTransformFailed.
    """

    def __init__(self, steps: Sequence[RecordStep]) -> None:
        self._steps = steps

    def transformed(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        found = records
        for step in self._steps:
            if not found:
                return found
            try:
                found = _checked(step(found))
            except (WaltapError, StopRequested):  # a stop during a transform's wait is no failure
                raise
            except Exception as cause:
                raise self._failed(step, records, cause) from cause
        return found

    def _failed(
        self, step: RecordStep, records: list[ConnectRecord], cause: Exception
    ) -> RecordTransformFailed:
        """Return the error, with the first record that fails alone."""
        # Transforms get batches, so the exception does not say which record caused it.
        what = str(cause) if isinstance(cause, RecordUnfit) else f"raised {type(cause).__name__}"
        who = next(filter(self._fails, records), None)
        where = _range(records) if who is None else _named(who)
        return RecordTransformFailed(
            f"the transform {step.label} failed at {where}: {what}", transform=step.label
        )

    def _fails(self, record: ConnectRecord) -> bool:
        found = [record]
        try:
            for step in self._steps:
                found = _checked(step(found)) if found else found
        except Exception:  # noqa: BLE001 - the error of the batch is reported
            return True
        return False


def _checked(records: Any) -> list[ConnectRecord]:
    """Return ``records`` if they are a list of records.

    Raises: RecordUnfit otherwise.
    """
    if type(records) is not list:
        raise RecordUnfit(f"it returned {type(records).__name__}, not a list of records")
    for each in records:
        if type(each) is not ConnectRecord:
            raise RecordUnfit(f"it returned {type(each).__name__} among records")
    return records


def _named(record: ConnectRecord) -> str:
    return f"a record for the topic {record.topic}, key {_key(record)}, {_position(record)}"


def _range(records: Sequence[ConnectRecord]) -> str:
    first, last = _position(records[0]), _position(records[-1])
    where = first if first == last else f"{first} to {last}"
    return f"a batch of {len(records)} records for {', '.join(_topics(records))}, {where}"


def _topics(records: Iterable[ConnectRecord]) -> Iterator[str]:
    topics = list(dict.fromkeys(record.topic for record in records))
    yield from topics[:3]
    if topics[3:]:
        yield f"{len(topics) - 3} other topics"


def _key(record: ConnectRecord) -> str:
    try:
        text = plain_json(record.key)
    except (AttributeError, TypeError, ValueError):
        return "that cannot be shown"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _position(record: ConnectRecord) -> str:
    source = record.value.get("source") if isinstance(record.value, dict) else None
    lsn = source.get("lsn") if isinstance(source, dict) else None
    return f"LSN {lsn_text(lsn)}" if isinstance(lsn, int) else "no LSN"
