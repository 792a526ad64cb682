"""Parse the WAL budget of a profile. Sans-IO."""

import re

__all__ = ["PATTERN", "SIZE", "budget_bytes", "octets"]

SIZE = r"^\s*(\d+(\.\d+)?)\s*(B|[kKMGTP]i?B)\s*$"
"""A size with PostgreSQL's units: 1 GB is 1024 MB."""

PATTERN = r"^\s*(\d+(\.\d+)?)\s*(B|[kKMGTP]i?B|%)\s*$"
"""A size, or a share of the disk."""

UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def octets(text: str) -> int:
    """Return the bytes of a size such as ``10GB``. Raises: ValueError."""
    found = re.fullmatch(SIZE, text)
    if found is None:
        raise ValueError(f"{text!r} is no size")
    unit = found[3].removesuffix("B").removesuffix("i").upper()
    return int(float(found[1]) * 1024 ** UNITS[unit])


def budget_bytes(text: str | None, disk_bytes: int | None) -> int | None:
    """Return a budget in bytes, None without a usable one.

    ``disk_bytes`` is the size of the disk that holds the WAL, None if it is unknown. A share of an
    unknown disk is no usable budget. Raises: ValueError.
    """
    if text is None:
        return None
    found = re.fullmatch(PATTERN, text)
    if found is None:
        raise ValueError(f"{text!r} is no budget")
    if found[3] != "%":
        return octets(text)
    return None if disk_bytes is None else int(disk_bytes * float(found[1]) / 100)
