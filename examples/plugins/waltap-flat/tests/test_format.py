"""The conformance suite of waltap. It reads replica identities from waltap-postgres."""

import json

import pytest

from waltap_testing import FormatRig, FormatSuite
from waltap_flat.plugin import register_formats

(SPEC,) = register_formats()


class TestFlatFormat(FormatSuite):
    @pytest.fixture
    def rig(self):
        return FormatRig(SPEC, None, parse=json.loads)
