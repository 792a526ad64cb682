"""The conformance suite of waltap: real kills, full disks, order and text."""

import json

import pytest

from waltap.encoders.format import Record
from waltap_testing import SinkRig, SinkSuite
from waltap_lines.plugin import register_sinks
from waltap_lines.sink import LinesProperties

(SPEC,) = register_sinks()


def read_back(path):
    """Read the destination by other means than the sink."""
    records = []
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        topic, key, value, headers = json.loads(line)
        key, value = (None if part is None else part.encode() for part in (key, value))
        records.append(
            Record(topic, key, value, tuple((name, text.encode()) for name, text in headers))
        )
    return records


class TestLinesSink(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "records"
            return SinkRig(SPEC, LinesProperties(path=path), lambda: read_back(path))

        return make
