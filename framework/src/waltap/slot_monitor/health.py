"""How a slot does, for status, metrics and the page."""

from dataclasses import dataclass

__all__ = ["SlotHealth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHealth:
    """The slot as of the last look, at ``at_ms`` since 1970 UTC, and what is to come.

    ``limit_kind`` is slot (``max_slot_wal_keep_size``), budget, disk, or "" where no limit is known;
    ``limit_bytes`` what may be kept, ``left_bytes`` what may be kept yet. ``growth_per_s`` and
    ``written_per_s`` are bytes. ``seconds_left`` and ``stalled_seconds_left`` as `WalForecast`.
    ``level`` is ok, warned or acted; ``action`` what was done, in words. ``invalidation`` is why the
    server gave the slot up, "" where it did not. ``orphans`` are slots that nobody reads and no offset
    here belongs to.
    """

    name: str
    at_ms: int
    wal_status: str
    retained_bytes: int
    limit_kind: str
    limit_bytes: int | None
    left_bytes: int | None
    growth_per_s: float
    written_per_s: float
    seconds_left: float | None
    stalled_seconds_left: float | None
    level: str
    action: str
    invalidation: str
    orphans: tuple[str, ...]
