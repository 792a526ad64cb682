"""waltap's events against those that Debezium gave for the same workload and configuration."""

from pathlib import Path

import pytest

from tests.differential.accepted import PAGE, accepted_differences, page, unexplained
from tests.differential.capture import capture
from tests.differential.comparison import differences, report
from tests.differential.corpus import Variant, variants
from tests.differential.normalise import canonical, lines
from tests.servers.postgres import Server

VARIANTS = variants()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_events_equal_debeziums_recording(variant: Variant, server: Server, tmp_path: Path) -> None:
    found = canonical(capture(variant, server, tmp_path, "waltap"), variant.collapse)
    open_, stale = unexplained(variant.id, differences(variant.expected(), found))
    assert not open_, f"{len(open_)} differences\n{report(open_)}"
    assert not stale, f"accepted differences that are gone: {[entry.summary for entry in stale]}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_recordings_are_canonical_already(variant: Variant) -> None:
    text = "".join(f"{line}\n" for line in lines(variant.expected()))
    assert text == variant.recording.read_text(encoding="utf-8")


def test_every_accepted_difference_concerns_a_corpus_and_has_a_reason() -> None:
    for entry in accepted_differences():
        names = [*(variant.id for variant in VARIANTS), "generated"]
        assert any(map(entry.concerns, names)), entry
        assert len(entry.reason) > 20, entry


def test_page_of_differences_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
