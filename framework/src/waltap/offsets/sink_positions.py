"""How far each of several sinks has got, in a file beside the offset, which has the slowest's."""

from pathlib import Path

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.errors import OffsetError
from waltap.offsets.durable_file import replace_durably
from waltap.source.position import Position, Positions
from waltap.transactions.order import TransactionCounts

__all__ = ["OutletPositions", "SinkProgress"]


class SinkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink has made durable, by partition; ``counted`` and ``held`` as in `PartitionOffset`."""

    positions: dict[str, Position]
    counted: TransactionCounts | None = None
    held: dict[str, Position] = {}


class _StoredPositions(msgspec.Struct, frozen=True, kw_only=True):
    """``slowest`` is what the pipeline was told: an offset before it was set by hand."""

    outlets: dict[str, SinkProgress]
    slowest: dict[str, Position] = {}
    version: int = 1


class OutletPositionsUnreadable(OffsetError):
    """The file with the positions of a pipeline's sinks cannot be read or written."""

    code = "WT-6203"
    remedy = (
        "Restore {path} from a backup, or remove it: every sink then goes on from the stored offset, "
        "which is the slowest's, and those that were ahead get some changes twice."
    )


class OutletPositions:
    """The file of one pipeline."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: bytes | None = None

    def load(self, stored: Positions) -> dict[str, SinkProgress]:
        """Return what each sink had when the pipeline's position became ``stored``.

        Nothing, where there is no offset, or where it was moved back by hand: what lies behind it is then
        wanted again.

        Raises: OutletPositionsUnreadable.
        """
        try:
            data = self._path.read_bytes()
            found = msgspec.json.decode(data, type=_StoredPositions)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as cause:
            raise OutletPositionsUnreadable(
                f"{self._path} cannot be read: {cause}", path=self._path
            ) from cause
        if not stored or any(stored.get(n, p) < p for n, p in found.slowest.items()):
            return {}
        self._kept = data
        return found.outlets

    def store(self, outlets: dict[str, SinkProgress], slowest: Positions) -> None:
        """Keep the positions, durably, where they changed. Raises: OutletPositionsUnreadable."""
        data = msgspec.json.encode(_StoredPositions(outlets=outlets, slowest=dict(slowest)))
        if data == self._kept:
            return
        try:
            replace_durably(self._path, data)
        except OSError as cause:
            raise OutletPositionsUnreadable(
                f"{self._path} cannot be written: {cause.strerror}", path=self._path
            ) from cause
        self._kept = data
