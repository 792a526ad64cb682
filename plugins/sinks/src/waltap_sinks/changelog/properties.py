"""Properties of the sink changelog."""

from typing import Literal

from waltap.base.files.properties import StorageProperties
from waltap.base.property import Positive, Whole, declare

Compression = Literal["zstd", "snappy", "lz4", "none"]


class ChangeLogProperties(StorageProperties):
    """The change log's folder and the size of its pieces."""

    path: str = declare(
        "path",
        summary="Folder of the change log: a path, or a URI such as s3://bucket/folder.",
        examples=("./changelog", "s3://lake/waltap/orders"),
        path=True,
    )
    compression: Compression = declare(
        "compression", default="zstd", summary="Compression of the Parquet segments."
    )
    segment_rows: Positive = declare(
        "segment.max.rows",
        default=1_000_000,
        le=2**31 - 1,
        summary="Most rows of one Parquet segment; a table gets several when it has more.",
    )
    chunk_rows: Positive = declare(
        "chunk.rows",
        default=16_384,
        le=2**31 - 1,
        summary="Rows that are turned into columns at a time.",
    )
    memory_bytes: Whole = declare(
        "memory.max.bytes",
        default=4 * 1024 * 1024,
        summary="Columns kept in memory before they go to the open segments. A large row takes about "
        "four times its size.",
    )

    @property
    def changelog(self) -> str:
        """Return the folder, under the name that all such sinks use."""
        return self.path
