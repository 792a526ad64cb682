"""Recordings: files of frames and what they mean."""

from waltap_testing.recording import FrameRecording, load_recordings, save_recordings
from waltap_testing.workload import TEXTS


def test_frames_of_any_text_or_bytes_come_back(tmp_path):
    payloads = [*(f"a\n{text}".encode() for text in TEXTS.values()), b"", b"\x00\xff"]
    frames = tuple((16 + n, payload) for n, payload in enumerate(payloads))
    given = FrameRecording(name="texts", frames=frames, options={"a": True}, version_num=150020)
    save_recordings(tmp_path / "frames", [given])
    assert load_recordings(tmp_path / "frames") == [given]
