"""YugabyteDB's arrangement of the PostgreSQL connector's parts."""

from dataclasses import replace

from waltap.events import PLAIN, VALUE_AND_SET
from waltap.events.form import EventForm
from waltap.mapping.envelope import DEBEZIUM_2_5, NEWEST
from waltap_postgres.dialect import PostgresDialect
from waltap_postgres.startup_plan import StartupPlan, StartupState, decide
from waltap_yugabyte.catalogue import YugabyteCatalogue
from waltap_yugabyte.chunks import YugabyteChunks
from waltap_yugabyte.hash_ranges import HashPlanner
from waltap_yugabyte.preflight import YugabytePreflight
from waltap_yugabyte.properties import YugabyteProperties
from waltap_yugabyte.publications import YugabytePublications
from waltap_yugabyte.reading import YugabyteReading
from waltap_yugabyte.server import YugabyteServer
from waltap_yugabyte.slots import YugabyteSlots
from waltap_yugabyte.stream import YugabyteStream

__all__ = ["YUGABYTEDB", "event_form"]

NAMING_UNSENT = replace(NEWEST, name="with the names of unsent fields", unsent=True)


def _decide(situation: StartupState) -> StartupPlan:
    """Decide as PostgreSQL's connector, except for a broken-off snapshot.

    Such a snapshot is read again with the existing slot.
    """
    decision = decide(situation)
    # The slot's time is still the snapshot's. Dropping the slot would only succeed minutes after
    # its last reader.
    slot = decision.slot
    keeps = slot is not None and slot.snapshot is not None and not slot.invalidated
    if decision.anew and keeps and decision.snapshot and situation.unreadable is None:
        return replace(decision, anew=False, begun=False)
    return decision


YUGABYTEDB = PostgresDialect(
    name="YugabyteDB",
    catalogue=YugabyteCatalogue,
    identity=YugabyteServer,
    slots=YugabyteSlots,
    publications=YugabytePublications,
    decide=_decide,
    reading=YugabyteReading,
    planner=HashPlanner,
    chunks=YugabyteChunks,
    stream=YugabyteStream,
    preflight=YugabytePreflight,
)


def event_form(properties: YugabyteProperties, decoder: str) -> EventForm:
    """Return the form of events.

    It is Debezium's at version 2.5, or waltap's plain form.
    """
    if properties.event_form == "plain":
        return EventForm(envelope=NAMING_UNSENT)
    return EventForm(cell=VALUE_AND_SET if decoder == "yboutput" else PLAIN, envelope=DEBEZIUM_2_5)
