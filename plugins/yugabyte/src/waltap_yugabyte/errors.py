"""Errors of YugabyteDB in addition to PostgreSQL's.

Source: yugabyte-db, ``yb_virtual_wal_client.c``, ``walsender.c``, ``slotfuncs.c``.
"""

import re

from waltap.errors import ConnectionLost, OffsetError, RetryVerdict, SourceError
from waltap_postgres.errors import ErrorMeanings, SlotInvalidated

NotYugabyte = SourceError.define("NotYugabyte", "WT-2150")
ChangeRefused = SourceError.define("ChangeRefused", "WT-2151")
CommandsOff = SourceError.define("CommandsOff", "WT-2152")
ReadTimeRefused = SourceError.define("ReadTimeRefused", "WT-2153")
TimeTooOld = SourceError.define("TimeTooOld", "WT-2156")
SlotStillActive = SourceError.define("SlotStillActive", "WT-2154", retry=RetryVerdict.NEVER)
# The cluster would send every change to both and count either one's confirmation.
SlotRead = SourceError.define("SlotRead", "WT-2159", retry=RetryVerdict.RECONNECT)
# The cluster has dropped the changes that the slot would need of them. With such a table no
# stream of the slot would start.
TableTooLate = SourceError.define("TableTooLate", "WT-2160", retry=RetryVerdict.NEVER)
SlotsUsedUp = ConnectionLost.define("SlotsUsedUp", "WT-2155")


# Texts of errors that another attempt after a reconnect may not meet.
PASSING = re.compile(
    r"catalog version mismatch|schema version mismatch|snapshot too old: no|the tablet \S+ (was )?split"
    r"|restart read|could not serialize|conflicts with|not the leader|timed out|try again",
    re.IGNORECASE,
)


class YugabyteMeanings(ErrorMeanings):
    """Translate the server's errors. PostgreSQL's meanings apply to all others."""

    def of_query(self, sqlstate: str, message: str, **facts: str) -> SourceError | OffsetError:
        text = message.strip().rstrip(".")
        if text.startswith("replica identity CHANGE"):
            return ChangeRefused(text)
        if "is unavailable" in text or "ysql_yb_enable_replication_commands" in text:
            return CommandsOff(text)
        if "max capacity reached" in text:
            return SlotsUsedUp(text)
        if "expired" in text and ("slot" in text or "stream" in text.lower()):
            return SlotInvalidated(text, slot=facts.get("slot", ""), reason="")
        if sqlstate == "55006":
            return SlotStillActive(text)
        if "yb_read_time" in text or "disable_catalog_version_check" in text:
            return ReadTimeRefused(text)
        if text.lower().startswith("snapshot too old"):
            return TimeTooOld(text)
        if PASSING.search(text):
            return ConnectionLost(f"{text} (SQLSTATE {sqlstate})")
        return super().of_query(sqlstate, message, **facts)
