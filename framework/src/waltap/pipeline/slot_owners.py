"""Whose the slots of a database are, as far as a folder of states tells."""

from contextlib import suppress
from typing import TYPE_CHECKING

from waltap.errors import OffsetError
from waltap.offsets.file_store import FileOffsetStore
from waltap.offsets.state_folder import OFFSET

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.offsets.offset import OffsetStore
    from waltap.source.connector import Connector, SlotStatus

__all__ = ["orphan_slots", "slot_owners"]


def slot_owners(profile: "Profile", connector: "Connector", own: "OffsetStore") -> dict[str, str]:
    """Return slot → pipeline, by the offsets in the folder that the profile keeps its state in. What
    cannot be read tells nothing."""
    stores = {
        path.parent.name: FileOffsetStore(path)
        for path in sorted(profile.engine.state_dir.glob(f"*/{OFFSET}"))
    }
    owners: dict[str, str] = {}
    for name, store in {**stores, profile.name: own}.items():
        with suppress(OffsetError):
            offset = store.load()
            for each in () if offset is None else offset.partitions.values():
                if each.system_id == connector.server.system_id:
                    owners[each.slot] = name
    return owners


def orphan_slots(
    profile: "Profile", connector: "Connector", own: "OffsetStore"
) -> "list[SlotStatus]":
    """Return the slots of the database that nobody reads and no stored offset belongs to. One of the
    profile's own name is told of by the checks of a start. Raises: SourceError."""
    owners, mine = slot_owners(profile, connector, own), connector.slot()
    return [
        slot
        for slot in connector.slots()
        if not (slot.reader or slot.name in owners or (mine and slot.name == mine.name))
    ]
