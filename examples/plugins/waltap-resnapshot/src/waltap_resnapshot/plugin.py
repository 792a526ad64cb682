"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SnapshotterSpec
from waltap_resnapshot.mode import Resnapshot

WALTAP_API = 1


@hookimpl
def register_snapshotters() -> Iterable[SnapshotterSpec]:
    """Contribute the mode: ``snapshot.mode=resnapshot``."""
    yield SnapshotterSpec(
        name="resnapshot",
        summary="Reads all but archives, at first and when the position is lost.",
        factory=lambda _properties: Resnapshot(),
    )
