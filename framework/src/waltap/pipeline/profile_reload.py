"""A profile that is read again while its pipeline runs: what of it holds at once, and what does not."""

from dataclasses import dataclass, replace

from waltap.config.changes import changes
from waltap.config.profile import Profile

__all__ = ["ReloadResult", "reloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """What became of a profile that was read again: properties that hold now, and those that changed and
    hold with the next start, by their names."""

    applied: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def reloaded(running: Profile, wanted: Profile) -> tuple[Profile, ReloadResult]:
    """Return ``running`` with those properties of ``wanted`` that may change in a run."""
    found = changes(running, wanted)
    taken = [each for each in found if each.reloadable]
    update = {
        each.declaration.field: getattr(wanted.engine, each.declaration.field)
        for each in taken
        if each.declaration is not None
    }
    engine = running.engine.model_copy(update=update)
    return replace(running, engine=engine), ReloadResult(
        applied=tuple(each.name for each in taken),
        restart=tuple(each.name for each in found if not each.reloadable),
    )
