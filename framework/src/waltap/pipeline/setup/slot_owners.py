"""Find the owners of slots in a folder of states."""

from contextlib import suppress
from typing import TYPE_CHECKING

from waltap.errors import OffsetError
from waltap.pipeline.runtime.lock import running
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.owned_objects import OwnedObjects
from waltap.ports.offsets.state_folder import BELONGINGS, OFFSET
from waltap.ports.source.roles import SlotOwningSource

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.ports.offsets.offset import OffsetStore
    from waltap.ports.source.connector import Connector, SlotStatus


def slot_owners(profile: "Profile", connector: "Connector", own: "OffsetStore") -> dict[str, str]:
    """Return slot → pipeline, from the offsets in the profile's state folder.

    A running pipeline without an offset owns the slot that it is making. Unreadable files are ignored.
    Call this after the slots were listed: a pipeline that starts in between has a slot that is not in the
    list.
    """
    folder, system = profile.engine.state_dir, connector.server.system_id
    owners: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/{BELONGINGS}")):
        if not path.with_name(OFFSET).exists() and running(path.parent) is not None:
            with suppress(OffsetError):
                for entry in OwnedObjects(path).all():
                    if (entry.kind, entry.system_id) == ("slot", system):
                        owners[entry.name] = path.parent.name
    stores = {
        path.parent.name: FileOffsetStore(path) for path in sorted(folder.glob(f"*/{OFFSET}"))
    }
    for name, store in {**stores, profile.name: own}.items():
        with suppress(OffsetError):
            offset = store.load()
            for each in () if offset is None else offset.partitions.values():
                if each.system_id == system:
                    owners[each.slot] = name
    return owners


def orphan_slots(
    profile: "Profile", connector: "Connector", own: "OffsetStore"
) -> "list[SlotStatus]":
    """Return slots without a reader and without a stored offset.

    The checks of a start report one of the profile's own name. Raises: SourceError.
    """
    if not isinstance(connector, SlotOwningSource):
        return []
    slots, mine = connector.slots(), connector.slot()
    owners = slot_owners(profile, connector, own)
    return [
        slot
        for slot in slots
        if not (slot.reader or slot.name in owners or (mine and slot.name == mine.name))
    ]
