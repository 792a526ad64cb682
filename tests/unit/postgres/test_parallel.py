"""One snapshot by several connections: how an iteration ends that its caller abandons."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from tests.harness.changelog import relation

from waltap.changes.transactions.transaction import SnapshotRows
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.snapshot.parallel import ParallelReading
from waltap_postgres.snapshot.plan import ReadTask
from waltap_postgres.snapshot.transaction import SnapshotTable

T = relation("public.t", [("id", "int4")])


def test_an_abandoned_iteration_may_end_in_a_thread_that_reads():
    """A garbage collection, in any thread, ends a generator that an exception left in a cycle."""
    table = CatalogTable(relation=T, partitioned=False, partition=False, estimate=1)
    abandoned, ended = threading.Event(), threading.Event()
    errors: list[Exception] = []
    iteration: list[Generator[SnapshotRows]] = []

    class Reader:
        def read(self, _work: ReadTask) -> Iterator[SnapshotRows]:
            yield SnapshotRows(relation=T, rows=[], ts=0, lsn=1, xid=1)
            assert abandoned.wait(120)
            try:
                iteration.pop().close()
            except Exception as error:  # noqa: BLE001 - the test's thread asserts that there is none
                errors.append(error)
            ended.set()

    @contextlib.contextmanager
    def opened(_ends: Callable[[], bool]) -> Iterator[Any]:
        yield Reader()

    work = ReadTask([SnapshotTable(table, deep=False)])
    iteration.append(ParallelReading([work], 1, opened, lambda: False).pieces())
    assert next(iteration[0]).relation is T
    abandoned.set()
    assert ended.wait(120)
    assert errors == []
