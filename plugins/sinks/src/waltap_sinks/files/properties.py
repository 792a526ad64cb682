"""Properties of the sink files."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, model_validator

from waltap.base.files.properties import StorageProperties
from waltap.base.property import Positive, Whole, declare
from waltap.base.text import braced_names

PARTS: Final = ("table", "topic", "date", "hour")


def _layout(text: str) -> str:
    if not {"table", "topic"} & braced_names(text, PARTS):
        raise ValueError(
            "it must name {table} or {topic}: rows of one table are files of their own"
        )
    if text.startswith(("/", "_", ".")) or ".." in text.split("/"):
        raise ValueError(
            "it must be a folder below the sink's, whose name begins with neither _ nor a dot"
        )
    return text


class FilesProperties(StorageProperties):
    """The folder of the files, and their size and age."""

    path: str = declare(
        "path",
        summary="Folder of the files: a path, or a URI such as s3://bucket/folder.",
        examples=("./events", "s3://lake/orders"),
        path=True,
    )
    format: Literal["jsonl", "parquet"] = declare(
        "file.format",
        common=True,
        default="jsonl",
        summary="jsonl: a line for each record. parquet: a row for each change, with the "
        "source's types and the change log's columns; formats and transforms of records "
        "do not apply.",
    )
    compression: Literal["gzip", "zstd", "none"] = declare(
        "compression", default="gzip", summary="Compression of the files."
    )
    line: Literal["record", "value"] = declare(
        "line",
        default="record",
        summary="Content of a line: the record with topic, key, value and headers, or its value "
        "alone, without tombstones. For jsonl.",
    )
    layout: Annotated[str, AfterValidator(_layout)] = declare(
        "layout",
        default="table={table}/date={date}",
        summary="Folders of the files, of {table} (the topic without topic.prefix), {topic}, {date} and "
        "{hour} (UTC, of the commit).",
    )
    max_bytes: Positive = declare(
        "file.max.bytes",
        default=32 * 1024 * 1024,
        summary="Size of all open files together, before compression, at which they are "
        "written; also the limit of memory, plus one batch.",
    )
    max_age_ms: Whole = declare(
        "file.max.age.ms",
        default=60_000,
        summary="Files are written at the latest so long after their first record; the server keeps the "
        "WAL until then.",
    )

    @model_validator(mode="after")
    def _lines_have_a_form(self) -> "FilesProperties":
        if self.format == "parquet" and self.line == "value":
            raise ValueError("line: it is about JSON lines, and file.format is parquet")
        return self
