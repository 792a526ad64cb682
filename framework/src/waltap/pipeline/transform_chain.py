"""The transforms before a sink, by the stage that calls them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from waltap.events import EventTransform
from waltap.format.format import Format
from waltap.format.record_stage import RecordStep
from waltap.transactions.transaction import Batch
from waltap.transforms.applied import transformed

__all__ = ["TransformChain"]


@dataclass(slots=True, kw_only=True)
class TransformChain:
    """Transforms in the order of the profile: of batches, which are called first, of events, by name, and
    of records, both of which the format calls."""

    batches: list[Callable[[Batch], Batch]] = field(default_factory=list)
    events: list[tuple[str, EventTransform]] = field(default_factory=list)
    records: list[RecordStep] = field(default_factory=list)

    def forget(self, oid: int) -> None:
        """Have transforms of batches drop what they keep of a relation that is gone."""
        for transform in self.batches:
            forget = getattr(transform, "forget", None)
            if forget is not None:
                forget(oid)

    def made(self, batch: Batch, encoder: Format | None, now: int) -> Batch:
        """Return what transforms and format make of ``batch``, which stays as it is; ``now`` as in
        `Format.render`. Raises: RecordError."""
        own = msgspec.structs.replace(batch)
        for transform in self.batches:
            own = transformed(transform, own)
        if encoder is not None:
            own.records = encoder.render(own.parts, now)
        return own
