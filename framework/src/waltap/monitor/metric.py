"""Define the declaration of a metric."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from waltap.pipeline.status import PipelineStatus
from waltap.printable import printable

__all__ = ["ObservedMetric", "Sample", "StatusMetric", "one"]

Sample = tuple[dict[str, str], float]
"""(labels, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMetric:
    """A metric that observers count."""

    # without the suffix ``_total``, which Prometheus adds to counters
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    summary: str
    labels: tuple[str, ...] = ()
    # upper bounds of a histogram
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """Return the name that Prometheus shows."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMetric(ObservedMetric):
    """A metric whose values come from the status."""

    # yields the known values
    samples: Callable[[PipelineStatus], Iterator[Sample]]

    def read(self, status: PipelineStatus) -> Iterator[Sample]:
        """Yield the values with printable labels."""
        # a table's name can have any character
        for labels, value in self.samples(status):
            yield {name: printable(label) for name, label in labels.items()}, value


def one(
    value: Callable[[PipelineStatus], float | None],
) -> Callable[[PipelineStatus], Iterator[Sample]]:
    """Return a reader of one value without labels.

    The reader yields nothing for None.
    """

    def samples(status: PipelineStatus) -> Iterator[Sample]:
        found = value(status)
        if found is not None:
            yield {}, float(found)

    return samples
