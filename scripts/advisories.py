"""Advisories from a folder, for an audit without a network: records in OSV's form, as JSON or YAML.

Such as a clone of the Python Packaging Advisory Database (pypa/advisory-database), or an unpacked export
of OSV.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

FRESH = timedelta(days=30)
"""Older advisories say nothing of what was found since."""


@dataclass(frozen=True, slots=True)
class Advisories:
    """The records that were found; ``newest`` is when the last of them was changed."""

    by_name: Mapping[str, list[dict[str, Any]]]
    newest: datetime

    @classmethod
    def read(cls, folder: Path) -> "Advisories":
        """Return those below ``folder`` for Python packages. Raises: ValueError where there are none."""
        by_name: dict[str, list[dict[str, Any]]] = {}
        newest = datetime.min.replace(tzinfo=UTC)
        for record in _records(folder):
            if record.get("withdrawn"):
                continue
            newest = max(newest, _moment(record["modified"]))
            for affected in record.get("affected", ()):
                package = affected.get("package", {})
                if package.get("ecosystem") == "PyPI":
                    name = canonicalize_name(package["name"])
                    by_name.setdefault(name, []).append({"id": record["id"], **affected})
        if not by_name:
            message = f"{folder} has no advisories in OSV's form"
            raise ValueError(message)
        return cls(by_name, newest)

    def of(self, name: str, version: str) -> list[str]:
        """Return the ids of those that a version of a package is affected by."""
        known = self.by_name.get(canonicalize_name(name), ())
        return sorted({each["id"] for each in known if affects(each, version)})

    def stale(self, now: datetime) -> bool:
        """Tell whether they are too old to say much."""
        return now - self.newest > FRESH


def affects(affected: Mapping[str, Any], version: str) -> bool:
    """Tell whether one entry of ``affected`` of a record lists ``version``, or has it in a range."""
    wanted = Version(version)
    if any(_same(listed, wanted) for listed in affected.get("versions", ())):
        return True
    return any(
        _within(found.get("events", ()), wanted)
        for found in affected.get("ranges", ())
        if found.get("type") == "ECOSYSTEM"
    )


def _within(events: Any, wanted: Version) -> bool:
    """Go through the events of a range in the order of their versions."""
    within = False
    for kind, text in sorted(
        ((kind, text) for event in events for kind, text in event.items()),
        key=lambda event: Version("0.dev0") if event[1] == "0" else Version(event[1]),
    ):
        at = Version("0.dev0") if text == "0" else Version(text)
        if kind == "introduced" and wanted >= at:
            within = True
        elif (kind == "fixed" and wanted >= at) or (kind == "last_affected" and wanted > at):
            within = False
    return within


def _same(listed: str, wanted: Version) -> bool:
    try:
        return Version(listed) == wanted
    except InvalidVersion:
        return False


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".yaml", ".yml", ".json"}:
            text = path.read_text(encoding="utf-8")
            record = json.loads(text) if path.suffix == ".json" else yaml.load(text, _LOADER)
            if isinstance(record, dict) and "id" in record and "modified" in record:
                yield record


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _moment(given: object) -> datetime:
    found = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    return found if found.tzinfo else found.replace(tzinfo=UTC)
