"""Snapshot modes of plugins that answer in the place of the one that a profile chooses."""

from collections.abc import Sequence

from waltap.config.namespace import Namespace, ValidationResult
from waltap.config.selection import SelectionProperties
from waltap.errors import PropertyProblem

__all__ = ["deputies"]


def deputies(
    choice: SelectionProperties, flat: Namespace, findings: ValidationResult, modes: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Return who answers for SELECTs (``snapshot.query.mode``) and locks (``snapshot.locking.mode``): by
    the field of `Profile`, the name of a mode and the property that gives it. ``modes`` are those there
    are."""
    found = {}
    for part, place, name in (
        ("snapshot_query", "snapshot.query.mode", choice.snapshot_query_mode_custom_name),
        ("snapshot_lock", "snapshot.locking.mode", choice.snapshot_locking_mode_custom_name),
    ):
        setting = flat.settings.get(place)
        if setting is None or str(setting.value).strip().casefold() != "custom":
            continue
        if name is not None:
            found[part] = (name, f"{place}.custom.name")
            continue
        allowed = f"a snapshot mode: {', '.join(sorted(modes))}"
        what = f"is missing: {place} is custom"
        findings.problems.append(PropertyProblem(f"{place}.custom.name", what, allowed=allowed))
    return found
