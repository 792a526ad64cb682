"""Every decoder of ours keeps the kit's promises."""

import pytest
from tests.conformance.recorded_sessions import CAPTURES, CONTEXT, recordings

from waltap_decoders.plugin import register_decoders
from waltap_testing.suites.decoder import DecoderRig, DecoderSuite

SPECS = {spec.name: spec for spec in register_decoders()}


class TestDecoders(DecoderSuite):
    @pytest.fixture(params=list(CAPTURES))
    def rig(self, request):
        return DecoderRig(
            SPECS[request.param],
            recordings(request.param),
            context=CONTEXT,
            self_delimiting=request.param != "decoderbufs",  # a message may lack fields
        )


def test_every_registered_decoder_is_here():
    assert set(SPECS) == set(CAPTURES)
