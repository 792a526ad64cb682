"""Every decoder of ours keeps the kit's promises."""

from pathlib import Path

import pytest

import waltap_decoders.plugin
from waltap.testing.decoder_suite import DecoderRig, DecoderSuite
from waltap.testing.recording import load_recordings

RECORDINGS = Path(__file__).parent / "recordings"
SPECS = {spec.name: spec for spec in waltap_decoders.plugin.register_decoders()}


class TestPgOutput(DecoderSuite):
    @pytest.fixture
    def rig(self):
        return DecoderRig(SPECS["pgoutput"], load_recordings(RECORDINGS / "pgoutput.jsonl"))
