"""What a pipeline does with an event that cannot be delivered, as its properties say. Sans-IO."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltap.errors import RecordError

if TYPE_CHECKING:
    from waltap.capture.properties import CaptureProperties
    from waltap.pipeline.properties import EngineProperties

__all__ = ["FailureHandling", "FailurePolicy"]


class FailureHandling(enum.Enum):
    """What becomes of one event."""

    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What becomes of events, by what failed.

    ``events``: they cannot be made of the change (Debezium's
    ``event.processing.failure.handling.mode``); ``records``: a transform, a converter or the destination
    refuses what was made (Kafka Connect's ``errors.tolerance``); ``values``: where a value cannot be
    converted and that is no reason to leave the field null; None: as ``events``.
    """

    events: FailureHandling = FailureHandling.FAIL
    records: FailureHandling = FailureHandling.FAIL
    values: FailureHandling | None = None

    @classmethod
    def of(
        cls,
        engine: "EngineProperties",
        capture: "CaptureProperties",
        tolerance: str | None = None,
    ) -> "FailurePolicy":
        """Return what a profile says; ``tolerance`` is one sink's own ``errors.tolerance``."""
        said = tolerance or engine.errors_tolerance
        records = {"none": FailureHandling.FAIL, "all": FailureHandling.WARN}.get(
            said, FailureHandling.DEAD_LETTER
        )
        if said == "all" and engine.dead_letter_topic:
            records = FailureHandling.DEAD_LETTER
        given = engine.event_processing
        events = records if given == "tolerance" else FailureHandling(given)
        values = (
            FailureHandling.DEAD_LETTER
            if capture.event_converting_failure == "dead_letter"
            else None
        )
        return cls(events=events, records=records, values=values)

    @property
    def tolerant(self) -> bool:
        """Tell whether the pipeline goes on without some events."""
        return self != FailurePolicy()

    def of_error(self, error: RecordError) -> FailureHandling:
        """Return what becomes of the event that ``error`` is told of."""
        if error.of_conversion and self.values is not None:
            return self.values
        return self.records if error.of_transform else self.events
