"""Every recorded frame, cut at every byte: an error, or nothing but what was there before."""

import pytest
from waltap.decode import ABSENT, Delete, Message, RelationSeen, Skipped
from waltap.errors import DecodeError

from tests.harness.captures import READERS, all_sessions, decoded, sessions

SESSIONS = [(name, scenario) for name, scenario in all_sessions() if not name.startswith("pg16")]


@pytest.mark.parametrize("cuts", [6, pytest.param(60, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("name", "scenario"), SESSIONS)
def test_cut_frames_are_refused(name: str, scenario: str, cuts: int) -> None:
    """Each frame is cut at so many bytes, others from frame to frame, in the session it belongs to."""
    frames = sessions(name)[scenario]
    for at, (lsn, data) in enumerate(frames):
        step = max(1, len(data) // cuts)
        for kept in range(at % step, len(data), step):
            decoder = READERS[name]()
            decoder.feed(frames[:at])
            try:
                left = decoder.feed([(lsn, data[:kept])])
            except DecodeError as error:
                assert 0 <= error.offset <= kept
                assert error.lsn == lsn
                continue
            assert name == "decoderbufs"
            assert_less_is_said_and_nothing_else(left, decoded(name, scenario))


def assert_less_is_said_and_nothing_else(left: list[Message], whole: list[Message]) -> None:
    """A protobuf cut between two fields is a message, too.

    What decoderbufs sends for a table without identity, an update or delete without tuples, cannot
    be told from such a cut, and says that the row is not known. A cut list of old values names
    fewer columns; those that it names are right.
    """
    (message,) = (m for m in left if not isinstance(m, RelationSeen))
    if isinstance(message, Skipped):
        return
    assert isinstance(message, Delete)
    named = {value for value in message.old if value is not ABSENT}
    deletes = [set(m.old) for m in whole if isinstance(m, Delete)]
    assert any(named <= values for values in deletes)


@pytest.mark.parametrize(("name", "scenario"), SESSIONS)
def test_bytes_behind_a_frame_are_refused(name: str, scenario: str) -> None:
    frames = sessions(name)[scenario]
    for at, (lsn, data) in enumerate(frames[:20]):
        decoder = READERS[name]()
        decoder.feed(frames[:at])
        with pytest.raises(DecodeError):
            decoder.feed([(lsn, data + b"\xff")])
