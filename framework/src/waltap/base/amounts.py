"""Format sizes and times as text for people."""

__all__ = ["FORESEEN_S", "ago", "duration", "full_in", "size"]

FORESEEN_S = 365 * 86_400.0
"""Longer forecasts are meaningless."""


def size(octets: int | None) -> str:
    """Return a number of bytes as text."""
    # The size is unknown.
    if octets is None:
        return "?"
    value, unit = float(octets), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def ago(ms: float) -> str:
    """Return a span of milliseconds as text."""
    seconds = max(0, round(ms / 1000))
    # Two units of the next size are the limit: 119 s, 119 min, 47 h.
    for longest, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < longest:
            return f"{round(seconds / length)} {unit}"
    return f"{round(seconds / 86_400)} days"


def duration(seconds: float) -> str:
    """Return a number of seconds as text."""
    return ago(seconds * 1000)


def full_in(seconds: float) -> str:
    """Return a disk's forecast as text, such as "full in 3 h"."""
    return "not full within a year" if seconds > FORESEEN_S else f"full in {duration(seconds)}"
