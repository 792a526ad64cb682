"""What a metric is: declared once."""

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
    """A metric that observers keep. ``name`` has no suffix ``_total``; ``buckets`` are a histogram's."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    summary: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """Return its name as Prometheus has it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMetric(ObservedMetric):
    """A metric that is read off a status; ``samples`` gives its values, without those nobody knows."""

    samples: Callable[[PipelineStatus], Iterator[Sample]]

    def read(self, status: PipelineStatus) -> Iterator[Sample]:
        """Give its values; names of tables in labels are printable."""
        for labels, value in self.samples(status):
            yield {name: printable(label) for name, label in labels.items()}, value


def one(
    value: Callable[[PipelineStatus], float | None],
) -> Callable[[PipelineStatus], Iterator[Sample]]:
    """Return what gives one value without labels, or none."""

    def samples(status: PipelineStatus) -> Iterator[Sample]:
        found = value(status)
        if found is not None:
            yield {}, float(found)

    return samples
