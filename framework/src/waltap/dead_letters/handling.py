"""What a pipeline does with an event that cannot be delivered, as its properties say. Sans-IO."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltap.errors import RecordError

if TYPE_CHECKING:
    from waltap.capture.properties import CaptureProperties
    from waltap.pipeline.properties import EngineProperties

__all__ = ["Handling", "Policy"]


class Handling(enum.Enum):
    """What becomes of one event."""

    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What becomes of events, by what failed.

    ``events``: they cannot be made of the change (Debezium's
    ``event.processing.failure.handling.mode``); ``records``: a transform, a converter or the destination
    refuses what was made (Kafka Connect's ``errors.tolerance``); ``values``: where a value cannot be
    converted and that is no reason to leave the field null; None: as ``events``.
    """

    events: Handling = Handling.FAIL
    records: Handling = Handling.FAIL
    values: Handling | None = None

    @classmethod
    def of(
        cls,
        engine: "EngineProperties",
        capture: "CaptureProperties",
        tolerance: str | None = None,
    ) -> "Policy":
        """Return what a profile says; ``tolerance`` is one sink's own ``errors.tolerance``."""
        said = tolerance or engine.errors_tolerance
        records = {"none": Handling.FAIL, "all": Handling.WARN}.get(said, Handling.DEAD_LETTER)
        if said == "all" and engine.dead_letter_topic:
            records = Handling.DEAD_LETTER
        given = engine.event_processing
        events = records if given == "tolerance" else Handling(given)
        values = Handling.DEAD_LETTER if capture.event_converting_failure == "dead_letter" else None
        return cls(events=events, records=records, values=values)

    @property
    def tolerant(self) -> bool:
        """Tell whether the pipeline goes on without some events."""
        return self != Policy()

    def of_error(self, error: RecordError) -> Handling:
        """Return what becomes of the event that ``error`` is told of."""
        if error.of_conversion and self.values is not None:
            return self.values
        return self.records if error.of_transform else self.events
