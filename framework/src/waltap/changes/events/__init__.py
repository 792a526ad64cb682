"""Turn changes into events by compiled plans. Sans-IO."""

from waltap.changes.decode.replica_identity import IdentityUnknown, ReplicaIdentities
from waltap.changes.events.cell import PLAIN, VALUE_AND_SET, CellShape
from waltap.changes.events.event import ChangeEvent, EventRow, EventTransform, GivenValue
from waltap.changes.events.plan import (
    NEW_KEY,
    OLD_KEY,
    EventColumn,
    EventContext,
    EventPlan,
    EventPlans,
)
from waltap.changes.events.run import (
    CHANGED,
    DELETES,
    INSERTS,
    MESSAGES,
    OPERATIONS,
    TRUNCATES,
    UPDATES,
    Run,
    runs,
)

__all__ = [
    "CHANGED",
    "DELETES",
    "INSERTS",
    "MESSAGES",
    "NEW_KEY",
    "OLD_KEY",
    "OPERATIONS",
    "PLAIN",
    "TRUNCATES",
    "UPDATES",
    "VALUE_AND_SET",
    "CellShape",
    "ChangeEvent",
    "EventColumn",
    "EventContext",
    "EventPlan",
    "EventPlans",
    "EventRow",
    "EventTransform",
    "GivenValue",
    "IdentityUnknown",
    "ReplicaIdentities",
    "Run",
    "runs",
]
