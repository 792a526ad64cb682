"""What the sink asks of a kind of target for histories: statements on tables of versions."""

import abc
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from waltap.changes.decode.tuple_image import Tuple
from waltap_sinks.sql.shape import HistoryShape, TargetColumn
from waltap_sinks.sql.targets.target import BoundTable, SqlTarget

__all__ = ["VersionStatements", "shape_of", "versions_of"]


class VersionStatements(abc.ABC):
    """Statements on tables of a `HistoryShape`, in the open transaction of the target.

    A version is *open* while its row is at the source as it is: ``is_current`` is true, ``valid_to`` null.
    Keys are what `TableShape.key_of` gives; times µs since 1970 UTC.
    """

    @abc.abstractmethod
    def index(self, shape: HistoryShape) -> None:
        """Make what finds the open version of a key quickly, where it is not there."""

    @abc.abstractmethod
    def insert_filled(
        self,
        table: BoundTable,
        rows: Sequence[Tuple],
        lacking: Sequence[TargetColumn],
        keys: Sequence[Any],
    ) -> int:
        """Add rows; what they lack is as in the open versions of ``keys``, one for each row; null where
        there is none. Return how many the target took."""

    @abc.abstractmethod
    def close(self, table: BoundTable, keys: Sequence[Any], times: Sequence[int]) -> int:
        """Close the open versions of ``keys`` at ``times``, one for each; return how many there were."""

    @abc.abstractmethod
    def close_row(self, table: BoundTable, row: Tuple, time: int) -> bool:
        """Close one open version of a table without a key that is as ``row``. False: there is one, and it
        stays open."""

    @abc.abstractmethod
    def close_all(self, table: BoundTable, time: int) -> None:
        """Close every open version."""

    @abc.abstractmethod
    def open(self, table: BoundTable, keys: Sequence[Any]) -> int:
        """Make those versions of ``keys`` the open ones that have no end and are not open yet; return how
        many."""

    @abc.abstractmethod
    def open_all(self, table: BoundTable) -> None:
        """Make every version an open one that has no end."""

    @abc.abstractmethod
    def drop_unopened(self, table: BoundTable) -> None:
        """Delete versions that have no end and were never opened: of a snapshot that broke off."""


def shape_of(table: BoundTable) -> HistoryShape:
    """Return the shape of a history's table."""
    assert isinstance(table.shape, HistoryShape)
    return table.shape


def versions_of(target: SqlTarget) -> VersionStatements:
    """Return the statements for a kind of target."""
    module, name = target.versions
    found: VersionStatements = getattr(import_module(f"waltap_sinks.sql.targets.{module}"), name)(
        target
    )
    return found
