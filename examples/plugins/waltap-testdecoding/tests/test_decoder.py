"""The kit's suite on recorded lines, and what it cannot know."""

from pathlib import Path

import pytest
from rig import CONTEXT, SPEC

from waltap.errors import DecodeError
from waltap_testing import DecoderRig, DecoderSuite, load_recordings

HERE = Path(__file__).parent


# [suite]
class TestTestDecoding(DecoderSuite):
    @pytest.fixture
    def rig(self):
        return DecoderRig(
            SPEC,
            load_recordings(HERE / "recordings.jsonl"),
            context=CONTEXT,
            self_delimiting=False,  # a line that is cut may still be a line
        )


# [/suite]


def decode(*lines):
    return SPEC.factory(CONTEXT).feed([(16, line.encode()) for line in lines])


@pytest.mark.parametrize(
    ("line", "offset"),
    [
        pytest.param("table public.t: INSERT: id[integer]:1 a[text]:'x", 37, id="open-quote"),
        pytest.param("table public.t: INSERT: id[integer]:1x a[text", 38, id="cut-in-a-type"),
        pytest.param("table public.t: INSERT:", 23, id="no-columns"),
        pytest.param("table public.t: UPDATE: old-key: id[integer]:1", 46, id="no-new-tuple"),
        pytest.param("table public.t: MERGE: id[integer]:1", 0, id="unknown-verb"),
        pytest.param("COMMIT 8 (at 2026-11-20 08:49:54.4+00)", 7, id="another-transaction"),
        pytest.param("COMMIT 7 (at 2026-13-20 08:49:54.4+00)", 13, id="no-time"),
        pytest.param("BEGIN 8", 0, id="begin-in-a-transaction"),
    ],
)
def test_a_line_that_is_wrong_is_refused_at_its_byte(line, offset):
    with pytest.raises(DecodeError) as caught:
        decode("BEGIN 7", line)
    assert caught.value.offset == offset


def test_a_row_outside_a_transaction_is_refused():
    with pytest.raises(DecodeError, match="inside a transaction"):
        decode("table public.t: INSERT: id[integer]:1")


def test_options_are_asked_for_as_properties_say():
    assert SPEC.factory(CONTEXT).start_options()["skip-empty-xacts"] == "0"
