"""The bounded form of tests/fuzz/decoders.py: WALTAP_FUZZ_INPUTS inputs per decoder."""

import os

import pytest
from tests.fuzz.decoders import SUBJECTS, run

INPUTS = int(os.environ.get("WALTAP_FUZZ_INPUTS", "1000"))
SEED = int(os.environ.get("WALTAP_FUZZ_SEED", "0"))
SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", SUBJECTS)
def test_damaged_input_gives_messages_or_a_decode_error(name, share):
    size = INPUTS // SHARES
    first = SEED + share * size
    counts = run(name, range(first, first + size))
    assert min(counts.values()) > 0, f"inputs are all alike: {counts}"
