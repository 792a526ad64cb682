"""Describe a slot for status, metrics and the page."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHealth:
    """The state of a slot at the last reading, with its forecast."""

    name: str
    # time of the reading, ms since 1970 UTC
    at_ms: int
    wal_status: str
    retained_bytes: int
    # slot (``max_slot_wal_keep_size``), budget, disk, or "" without a known limit
    limit_kind: str
    # how much WAL the slot may retain in all
    limit_bytes: int | None
    # how much more WAL the slot may retain
    left_bytes: int | None
    # bytes per second, as in `WalForecast`
    growth_per_s: float
    written_per_s: float
    # seconds until the limit, as in `WalForecast`
    seconds_left: float | None
    stalled_seconds_left: float | None
    # ok, warned or acted
    level: str
    # the monitor's action in words
    action: str
    # why the server invalidated the slot, "" for a valid slot
    invalidation: str
    # inactive slots that belong to no stored offset
    orphans: tuple[str, ...]
