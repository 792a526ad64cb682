"""waltap's events against those that Debezium gave for the same workload and configuration."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.differential.accepted import PAGE, accepted_differences, page, unexplained
from tests.differential.capture import capture
from tests.differential.comparison import differences, report
from tests.differential.corpus import Variant, variants
from tests.differential.normalise import canonical, lines
from tests.harness.servers.postgres import Cluster, Server

VARIANTS = variants()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_events_equal_debeziums_recording(variant: Variant, server: Server, tmp_path: Path) -> None:
    found = canonical(capture(variant, server, tmp_path, "waltap"), variant.collapse)
    open_, stale = unexplained(variant.id, differences(variant.expected(), found))
    assert not open_, f"{len(open_)} differences\n{report(open_)}"
    assert not stale, f"accepted differences that are gone: {[entry.summary for entry in stale]}"


@contextlib.contextmanager
def written_by_others(server: Server, name: str) -> Iterator[None]:
    """Let another database of the server write WAL all the time."""
    database, stopped = server.create_database(name), threading.Event()

    def write() -> None:
        with database.connect(autocommit=True) as connection:
            while not stopped.is_set():
                connection.execute("SELECT pg_logical_emit_message(false, 'of', 'others')")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            stopped.set()
            writing.result()
            database.drop()


@pytest.mark.parametrize(
    "variant", variants(["truncate_messages:prefixes"]), ids=lambda each: each.id
)
def test_what_other_databases_write_changes_no_rank(
    variant: Variant, private_server: Cluster, tmp_path: Path
) -> None:
    """A message has the LSN at which its record ends: the next record begins there, or further on."""
    with written_by_others(private_server, "others"):
        found = canonical(capture(variant, private_server, tmp_path, "waltap"), variant.collapse)
    open_, _ = unexplained(variant.id, differences(variant.expected(), found))
    assert not open_, f"{len(open_)} differences\n{report(open_)}"


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
