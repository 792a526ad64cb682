"""Sizes and times for people."""

__all__ = ["FORESEEN_S", "ago", "duration", "full_in", "size"]

FORESEEN_S = 365 * 86_400.0
"""A forecast of more says nothing."""


def size(octets: int | None) -> str:
    """Return a number of bytes for people."""
    if octets is None:
        return "?"
    value, unit = float(octets), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def ago(ms: float) -> str:
    """Return a span of time for people."""
    seconds = max(0, round(ms / 1000))
    for longest, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < longest:
            return f"{round(seconds / length)} {unit}"
    return f"{round(seconds / 86_400)} days"


def duration(seconds: float) -> str:
    """Return a number of seconds for people."""
    return ago(seconds * 1000)


def full_in(seconds: float) -> str:
    """Return for people when something is full, by a forecast."""
    return "not full within a year" if seconds > FORESEEN_S else f"full in {duration(seconds)}"
