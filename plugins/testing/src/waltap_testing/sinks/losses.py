"""Sink tests: a destination restored from a backup, emptied or recreated."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from waltap.changes.transactions.position import START, Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError
from waltap.ports.sink.roles import checks_of, stored_position_of
from waltap.ports.sink.sink import Sink
from waltap.ports.sink.stored_position import require_stored
from waltap_testing.sinks.crash import written
from waltap_testing.sinks.rig import SinkRig, sole
from waltap_testing.workload import batches, mixed

# The most changes in a batch.
MOST: Final = 4

# Suffixes of the files in which databases keep changes that are not in the main file yet.
JOURNALS: Final = ("-journal", "-wal", "-shm", ".wal")

Recorder = Callable[[str, object], None]

_numbers = itertools.count(1)


def keeping(path: Path) -> Callable[[], Callable[[], None]]:
    """Return the ``keep`` of a rig whose destination is ``path``."""

    def keep() -> Callable[[], None]:
        folder = path.parent / f".kept-{next(_numbers)}"
        folder.mkdir()
        # Also the database's journals: an old file with a new journal would be damaged.
        for each in _all_of(path):
            _copy(each, folder / each.name)

        def put_back() -> None:
            for each in _all_of(path):
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            for each in folder.iterdir():
                _copy(each, path.parent / each.name)

        return put_back

    return keep


def _all_of(path: Path) -> list[Path]:
    paths = [path, *(path.with_name(path.name + ending) for ending in JOURNALS)]
    return [each for each in paths if each.exists()]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


class NoticesLosses:
    """Rules for a destination that is behind its durable position.

    The contract is `PositionKeepingSink.stored_position`. A base class of the suite.
    """

    @pytest.mark.parametrize("emptied", [False, True], ids=["older", "emptied"])
    def test_a_destination_that_lost_something_is_noticed_when_opened(
        self, rig: SinkRig, tmp_path: Path, record_property: Recorder, *, emptied: bool
    ) -> None:
        """Each start raises a `loses` error until the data is back.

        The error comes from `check`, `open` or the engine's comparison.
        """
        history = _History(rig, tmp_path, record_property, emptied=emptied)
        history.sink.close()
        newest = history.keep()
        history.put_back()
        # Twice: the first failed start must not hide the loss from the next one.
        for _ in range(2):
            history.noticed()
        newest()
        sink = rig.build(tmp_path, has_offset=True)
        assert Positions.of(_opened(sink, history.stored_position)) == history.stored_position
        sink.close()

    @pytest.mark.parametrize("emptied", [False, True], ids=["older", "emptied"])
    def test_a_loss_beneath_an_open_sink_is_noticed(
        self, rig: SinkRig, tmp_path: Path, record_property: Recorder, *, emptied: bool
    ) -> None:
        """A write or flush raises before the sink promises another position.

        If that error does not report a loss, the next start does.
        """
        history = _History(rig, tmp_path, record_property, emptied=emptied)
        sink, had = history.sink, sole(history.stored_position)
        assert had is not None
        history.put_back()
        try:
            for batch in history.rest(sink):
                sink.write(batch)
                promised = sole(sink.flush())
                assert promised is None or promised <= had, "it promises what follows a loss"
            pytest.fail("it continues with a destination that lost its rows")
        except SinkError as error:
            reported = error.loses
        finally:
            with contextlib.suppress(SinkError):
                sink.close()
        # An error with `loses` has already reported the loss; any other error has not.
        if not reported:
            history.noticed()

    @pytest.mark.parametrize("emptied", [False, True], ids=["older", "emptied"])
    def test_a_repair_continues_with_what_is_left(
        self, rig: SinkRig, tmp_path: Path, record_property: Recorder, *, emptied: bool
    ) -> None:
        """With `SinkContext.repairs` the sink opens and accepts changes.

        The engine reads the tables again afterwards.
        """
        history = _History(rig, tmp_path, record_property, emptied=emptied)
        history.sink.close()
        history.put_back()
        sink = rig.with_context(repairs=True).build(tmp_path, has_offset=True)
        checks_of(sink)
        sink.open()
        end = Position(history.workload.parts[-1].end_lsn)
        assert written(sink, history.rest(sink)) == end
        stored_position = Positions.of(stored_position_of(sink))
        sink.close()
        sink = rig.build(tmp_path, has_offset=True)
        assert sole(_opened(sink, stored_position)) == end
        sink.close()


class _History:
    """A destination with all transactions except the last.

    Two runs wrote them, and the second is open. `put_back` restores the state between the runs, or
    with ``emptied`` the one before them.
    """

    def __init__(
        self, rig: SinkRig, folder: Path, record_property: Recorder, *, emptied: bool
    ) -> None:
        self._rig, self._folder = rig, folder
        sink = rig.build(folder)
        if not sink.capabilities.exactly_once:
            pytest.skip("declares at least once: it keeps no position that could be behind")
        if rig.keep is None:
            record_property(
                "waltap",
                f"sink {rig.spec.name}: NOT TESTED: whether it notices a destination that is older than "
                "the stored position, or emptied: give the rig a keep",
            )
            pytest.skip("no copy of its destination can be put back: give the rig a keep")
        self.keep, self.workload = rig.keep, mixed(truncate=False)
        # Before `open`, so that an emptied destination has no table or file either.
        empty = self.keep()
        sink.open()
        self._write(sink, 0, 2)
        sink.close()
        older = self.keep()
        self.put_back = empty if emptied else older
        self.sink = rig.opened(folder, has_offset=True)
        self._write(self.sink, 2, -1)
        self.stored_position = Positions.of(stored_position_of(self.sink))

    def rest(self, sink: Sink) -> Iterator[Batch]:
        return self._batches(sink, -1, None)

    def _write(self, sink: Sink, first: int, behind: int) -> None:
        for batch in self._batches(sink, first, behind):
            sink.write(batch)
            sink.flush()

    def _batches(self, sink: Sink, first: int, behind: int | None) -> Iterator[Batch]:
        """Yield the transactions from number ``first`` up to ``behind``."""
        parts = self.workload.parts
        after = Position(parts[first - 1].end_lsn) if first else START
        rendered = self.workload.rendered if sink.capabilities.records else None
        return batches(parts[first:behind], MOST, after, rendered)

    def noticed(self) -> None:
        sink = self._rig.build(self._folder, has_offset=True)
        with pytest.raises(SinkError) as lost:
            _opened(sink, self.stored_position)
        with contextlib.suppress(SinkError):
            sink.close()
        assert lost.value.loses, f"the engine keeps no certificate of {lost.value!r}"


def _opened(sink: Sink, stored_position: Positions) -> Position | Positions | None:
    """Open the sink as the engine does, at ``stored_position``.

    Raises: SinkError.
    """
    checks_of(sink)
    found = sink.open()
    require_stored("of the kit", stored_position, Positions.of(found))
    return found
