"""A sink of one's own: a JSON file with the number of records per topic."""

import json
from collections import Counter
from pathlib import Path

from waltap.config import Properties, declare
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.sink import Sink
from waltap.ports.specs import SinkSpec


class CountsProperties(Properties):
    """Where the counts go."""

    path: Path = declare("path", default=Path("counts.json"), summary="File that holds the counts.")


class CountsSink(Sink):
    """Counts records per topic; a crash may count some twice."""

    def __init__(self, properties, context):
        self.path, self.position = properties.path, None
        old = context.has_offset and self.path.exists()
        self.counts = Counter(json.loads(self.path.read_text()) if old else {})

    def open(self):
        return None  # no position is kept with the data: waltap's offset store keeps it

    def write(self, batch):
        self.counts.update(record.topic for record in batch.records)
        self.position = batch.position

    def flush(self):
        self.path.write_text(json.dumps(self.counts, indent=2))
        return self.position  # durable up to here: waltap may move the offset

    def close(self):
        pass


@hookimpl
def register_sinks():
    return [
        SinkSpec(
            name="counts",
            summary="Number of records per topic, as a JSON file.",
            properties=CountsProperties,
            factory=CountsSink,
        )
    ]
