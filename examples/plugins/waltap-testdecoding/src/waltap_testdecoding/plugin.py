"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import DecoderSpec
from waltap_testdecoding.decoder import CAPABILITIES, TestDecoding
from waltap_testdecoding.properties import TestDecodingProperties

WALTAP_API = 1


# [spec]
@hookimpl
def register_decoders() -> Iterable[DecoderSpec]:
    yield DecoderSpec(
        name="test_decoding",
        summary="PostgreSQL's example output plugin: readable lines of text.",
        output_plugin="test_decoding",
        properties=TestDecodingProperties,
        capabilities=CAPABILITIES,
        factory=TestDecoding,
    )


# [/spec]
