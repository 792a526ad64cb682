"""Decide how a pipeline handles undeliverable events. Sans-IO."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltap.errors import RecordError

if TYPE_CHECKING:
    from waltap.changes.capture.properties import CaptureProperties
    from waltap.config.pipeline_properties import EngineProperties


class FailureHandling(enum.Enum):
    """The ways to handle an undeliverable event."""

    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """The handling of an event for each kind of failure."""

    # the format cannot render the change: Debezium's ``event.processing.failure.handling.mode``
    events: FailureHandling = FailureHandling.FAIL
    # a transform, converter or destination refuses the record: Kafka Connect's ``errors.tolerance``
    records: FailureHandling = FailureHandling.FAIL
    # a value cannot be converted, and the field must not become null; None: as ``events``
    values: FailureHandling | None = None

    @classmethod
    def of(
        cls,
        engine: "EngineProperties",
        capture: "CaptureProperties",
        tolerance: str | None = None,
    ) -> "FailurePolicy":
        """Return the policy of a profile.

        ``tolerance`` is the ``errors.tolerance`` of one sink.
        """
        said = tolerance or engine.errors_tolerance
        records = {"none": FailureHandling.FAIL, "all": FailureHandling.WARN}.get(
            said, FailureHandling.DEAD_LETTER
        )
        # as in Kafka Connect, a topic for dead letters gets the events that ``all`` tolerates
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
        """Return whether the pipeline may skip events and continue."""
        return self != FailurePolicy()

    def of_error(self, error: RecordError) -> FailureHandling:
        """Return the handling of an event that failed with ``error``."""
        if error.of_conversion and self.values is not None:
            return self.values
        return self.records if error.of_transform else self.events
