# Types of the generated module: only what is used, written by hand.
# ruff: noqa: N802 - protobuf names them

from collections.abc import Sequence
from typing import ClassVar, Literal

from google.protobuf.descriptor import Descriptor

UNKNOWN: int
INSERT: int
UPDATE: int
DELETE: int
BEGIN: int
COMMIT: int

class Point:
    x: float
    y: float

class DatumMessage:
    column_name: str
    column_type: int
    datum_missing: bool
    datum_string: str
    def WhichOneof(self, name: Literal["datum"]) -> str | None: ...

class TypeInfo:
    modifier: str
    value_optional: bool

class RowMessage:
    DESCRIPTOR: ClassVar[Descriptor]
    transaction_id: int
    commit_time: int
    table: str
    op: int
    new_tuple: Sequence[DatumMessage]
    old_tuple: Sequence[DatumMessage]
    new_typeinfo: Sequence[TypeInfo]
    @staticmethod
    def FromString(data: bytes) -> RowMessage: ...
    def DiscardUnknownFields(self) -> None: ...
    def SerializeToString(self) -> bytes: ...
    def HasField(self, name: str) -> bool: ...
