"""Reads what the sink of JSON lines has written, also while it writes."""

import json
from pathlib import Path
from typing import Any

__all__ = ["records"]


def records(path: Path) -> list[Any]:
    """Return the documents of the whole lines of a file, none where there is no file; the last line of a
    sink that is at work may be torn."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
