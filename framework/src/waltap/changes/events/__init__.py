"""Turn changes into events by compiled plans. Sans-IO."""

from waltap.changes.decode.replica_identity import ReplicaIdentities
from waltap.changes.events.event import ChangeEvent, EventRow, EventTransform, GivenValue
from waltap.changes.events.plan import (
    CHANGED,
    DELETES,
    INSERTS,
    OPERATIONS,
    PLAIN,
    TRUNCATES,
    UPDATES,
    VALUE_AND_SET,
    EventContext,
    EventPlan,
    EventPlans,
    Run,
    kind_of,
    runs,
)

__all__ = [
    "CHANGED",
    "DELETES",
    "INSERTS",
    "OPERATIONS",
    "PLAIN",
    "TRUNCATES",
    "UPDATES",
    "VALUE_AND_SET",
    "ChangeEvent",
    "EventContext",
    "EventPlan",
    "EventPlans",
    "EventRow",
    "EventTransform",
    "GivenValue",
    "ReplicaIdentities",
    "Run",
    "kind_of",
    "runs",
]
