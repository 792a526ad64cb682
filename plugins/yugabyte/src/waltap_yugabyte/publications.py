"""Publications of YugabyteDB: PostgreSQL's, without what only its WAL and system columns tell."""

import logging
from collections.abc import Iterable

from waltap.source.coverage import Coverage
from waltap_postgres.errors import PublicationGone
from waltap_postgres.replication.publications import Publications

__all__ = ["YugabytePublications"]

log = logging.getLogger(__name__)

NOT_AT_ONCE = (
    "%s: added to the publication of a slot that is there. Releases before 2026.1 follow within 15 "
    "minutes (cdcsdk_publication_list_refresh_interval_secs), and what is written to it until then does "
    "not come by the stream: read it again after that time, with `waltap snapshot FILE %s` or an "
    "execute-snapshot signal"
)


class YugabytePublications(Publications):
    """A slot streams what the publication was when the slot was made, or refreshed last."""

    def gone(self) -> PublicationGone | None:
        return None  # a slot cannot be asked for its first change

    def memberships(self) -> dict[str, tuple[str, str]]:
        return {}  # nothing tells that a member was taken out and put in again

    def coverage(self) -> Coverage:
        return Coverage()  # a TRUNCATE is not streamed, and nothing tells what publications were

    def adds_tables(self) -> bool:
        return False  # nothing tells from when on the slot streams them

    def make(self, *, new_slot: bool = False) -> None:
        late = set() if new_slot else self.unsent()
        super().make(new_slot=new_slot)
        self._tell(late)

    def publish(self, places: Iterable[tuple[str, str]], *, wanted: bool) -> list[tuple[str, str]]:
        done = super().publish(places, wanted=wanted)
        if wanted:
            self._tell(done)
        return done

    @staticmethod
    def _tell(places: Iterable[tuple[str, str]]) -> None:
        names = [".".join(place) for place in sorted(places)]
        if names:
            log.warning(NOT_AT_ONCE, ", ".join(names), " ".join(names))
