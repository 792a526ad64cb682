"""The recorded sessions of each decoder, as the kit wants them.

Frames are those of tests/golden/captures; sessions that stand in tests/conformance/recordings say
what they mean, too.
"""

from collections.abc import Mapping
from pathlib import Path

from tests.harness.captures import NOT_JSON, recorded_catalogue, sessions

from waltap.changes.decode import DecoderContext, ServerInfo
from waltap_testing.recording import FrameRecording, load_recordings

MEANT = Path(__file__).parent / "recordings"
CONTEXT = DecoderContext(
    server=ServerInfo(version_num=150020), catalogue=recorded_catalogue(), publications=("p",)
)

Options = Mapping[str, object]
ROWS = (
    "insert",
    "insert_toast",
    "update_nonkey",
    "update_unchanged_toast",
    "update_key",
    "delete",
    "types",
    "types_odd",
    "ddl",
)
CAPTURES: dict[str, dict[str, tuple[Options, tuple[str, ...]]]] = {
    "pgoutput": {
        "pgoutput_v1": ({}, ()),
        "pgoutput_v2_stream": ({"pgoutput.streaming": "on"}, ()),
        "pgoutput_v3_twophase": ({"pgoutput.two_phase": True}, ()),
        "pgoutput_v3_stream_twophase": (
            {"pgoutput.two_phase": True, "pgoutput.streaming": "on"},
            (),
        ),
        "pg16/pgoutput_v4_parallel": ({"pgoutput.streaming": "parallel"}, ()),
    },
    "yboutput": {
        "pgoutput_v1": ({}, ROWS),
    },
    "wal2json": {
        "wal2json_v2_all": ({}, ()),
        "wal2json_v1_all": ({"wal2json.format-version": "1"}, ()),
    },
    "wal2json_streaming": {},
    "decoderbufs": {"decoderbufs": ({}, ())},
}
"""Decoder → capture → the options to read it with, and which of its scenarios; (): all.

Captures that were made with other options than the decoder asks for are left out.
"""


def recordings(decoder: str) -> list[FrameRecording]:
    """Return the recorded sessions of ``decoder``, with their meaning where it was written down."""
    path = MEANT / f"{decoder}.jsonl"
    meant = {recording.name: recording for recording in load_recordings(path)}
    found = []
    for capture, (options, wanted) in CAPTURES[decoder].items():
        version = 160002 if capture.startswith("pg16") else 150020
        for scenario, frames in sessions(capture).items():
            if (capture, scenario) in NOT_JSON or (wanted and scenario not in wanted):
                continue
            name = f"{capture} {scenario}"
            reported = meant.pop(name, None)
            found.append(
                FrameRecording(
                    name=name,
                    frames=tuple(frames),
                    means=None if reported is None else reported.means,
                    options=options,
                    version_num=version,
                )
            )
    return [*found, *meant.values()]
