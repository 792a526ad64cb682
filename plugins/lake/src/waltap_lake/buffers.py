"""Rows of one table of the lake that wait for their commit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waltap_sinks.changelog.segment import TableBuffer
from waltap_sinks.changelog.table_version import TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PendingBuffers"]


class PendingBuffers:
    """What came since the last commit, in order: one buffer after the other, each of one version."""

    def __init__(self) -> None:
        self._buffers: list[TableBuffer] = []

    def buffer(self, version: TableVersion) -> TableBuffer:
        """Return the buffer that takes the next rows of ``version``."""
        if not self._buffers or self._buffers[-1].version.fingerprint != version.fingerprint:
            self._buffers.append(TableBuffer(version))
        self._buffers[-1].goes_on_as(version)
        return self._buffers[-1]

    @property
    def bytes(self) -> int:
        """Return how much the columns have that were made so far."""
        return sum(buffer.bytes for buffer in self._buffers)

    def convert(self) -> None:
        """Make columns of what came."""
        for buffer in self._buffers:
            buffer.convert()

    def rows(self) -> "pa.Table | None":
        """Return all of it as one table, None for nothing. Columns that a version lacks are null.

        Raises: pyarrow.ArrowInvalid where two versions have one column with types that nothing joins.
        """
        import pyarrow as pa

        tables: Sequence[pa.Table] = [
            pa.Table.from_batches(batches)
            for buffer in self._buffers
            if (batches := buffer.given_up().batches)
        ]
        if not tables:
            return None
        # in one piece: delta-rs would write several side by side, each to a file
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
