"""Cost of decoding, per row, with frames already in memory: `python benchmarks/decode.py`.

Twelve columns of mixed types, as benchmarks/stream_json has them; groups of frames as a replication
connection hands them over. Prints the best of several rounds, in microseconds of one core.
"""

import json
import struct
import sys
import time
from collections.abc import Callable, Sequence

from waltap.changes.decode import (
    DataType,
    Decoder,
    DecoderContext,
    Frame,
    Message,
    Relation,
    ServerInfo,
)
from waltap_decoders.decoderbufs import DecoderBufs
from waltap_decoders.pgoutput import PgOutput
from waltap_decoders.wal2json import Wal2Json

ROWS = 20_000
GROUP = 512
ROUNDS = 7
COLUMNS = {
    "id": 20, "small": 21, "number": 23, "ratio": 701, "price": 1700, "flag": 16,
    "name": 25, "note": 1043, "made": 1114, "seen": 1184, "day": 1082, "ref": 2950,
}  # fmt: skip


class NoCatalogue:
    """A catalogue that knows nothing."""

    def relation(self, schema: str, table: str) -> Relation | None:
        return None

    def data_type(self, oid: int) -> DataType | None:
        return None

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        return False


def text_row(number: int, *, ascii_only: bool = True, nulls: bool = False) -> list[bytes | None]:
    name = f"customer {number % 977}" if ascii_only else f"Kundin {number % 977} Grüße"
    values = [
        str(number + 1_000_000), "-42", str(number * 7), "3.141592653589793", "12345.6789", "t",
        name, "a note about it", "2024-02-29 12:34:56.789012", "2024-02-29 12:34:56.789012+00",
        "2024-02-29", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ]  # fmt: skip
    row: list[bytes | None] = [value.encode() for value in values]
    if nulls:
        row[3] = row[7] = row[11] = None
    return row


def tuple_data(row: Sequence[bytes | None]) -> bytes:
    return struct.pack("!H", len(row)) + b"".join(
        b"n" if value is None else b"t" + struct.pack("!i", len(value)) + value for value in row
    )


def opening(relation_oid: int) -> list[Frame]:
    columns = b"".join(
        bytes((name == "id",)) + name.encode() + b"\0" + struct.pack("!Ii", oid, -1)
        for name, oid in COLUMNS.items()
    )
    head = struct.pack("!I", relation_oid) + b"public\0wide\0d" + struct.pack("!H", len(COLUMNS))
    return [(1, b"B" + struct.pack("!QqI", 9, 0, 7)), (0, b"R" + head + columns)]


def decoder(**options: object) -> PgOutput:
    context = DecoderContext(
        server=ServerInfo(version_num=160000),
        catalogue=NoCatalogue(),
        publications=("p",),
        options={f"pgoutput.{name}": value for name, value in options.items()},
    )
    return PgOutput(context)


def json_row(number: int) -> bytes:
    """Return the insert as wal2json format 2 writes it."""
    bare = {16, 20, 21, 23, 701, 1700}
    columns = []
    for (name, oid), value in zip(COLUMNS.items(), text_row(number), strict=True):
        text = (value or b"").decode()
        value_json = ("true" if oid == 16 else text) if oid in bare else json.dumps(text)
        columns.append(f'{{"name":"{name}","typeoid":{oid},"value":{value_json}}}')
    head = '"xid":7,"timestamp":"2024-02-29 12:34:56.789012+00","origin":0,"lsn":"0/10"'
    tail = ",".join(columns)
    text = f'{{"action":"I",{head},"schema":"public","table":"wide","columns":[{tail}]}}'
    return text.encode()


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def protobuf_row(number: int) -> bytes:
    """Return the insert as decoderbufs writes it."""
    texts = text_row(number)
    fields = {
        "id": b"\x20" + varint(number), "small": b"\x18" + varint((1 << 64) - 42),
        "number": b"\x18" + varint(number), "ratio": b"\x31" + struct.pack("<d", 3.14),
        "price": block(8, texts[4] or b""), "flag": b"\x38\x01", "name": block(8, texts[6] or b""),
        "note": block(8, texts[7] or b""), "made": b"\x20" + varint(1709210096789012),
        "seen": b"\x20" + varint(1709210096789012), "day": b"\x18" + varint(19782),
        "ref": block(8, texts[11] or b""),
    }  # fmt: skip
    datums = [
        block(1, name.encode()) + b"\x10" + varint(oid) + fields[name]
        for name, oid in COLUMNS.items()
    ]
    info = block(7, block(1, b"text") + b"\x10\x01")
    head = b"\x08\x07\x10\x05" + block(3, b"public.wide") + b"\x20\x00"
    return head + b"".join(block(5, datum) for datum in datums) + info * len(datums)


def best(frames: list[Frame], make: Callable[[], Decoder], first: list[Frame]) -> float:
    """Return microseconds per frame of the best round."""
    groups = [frames[start : start + GROUP] for start in range(0, len(frames), GROUP)]
    seconds = []
    for _ in range(ROUNDS):
        subject = make()
        messages: list[Message] = subject.feed(first)
        begun = time.process_time()
        for group in groups:
            messages = subject.feed(group)
        seconds.append(time.process_time() - begun)
        assert messages
    return min(seconds) / len(frames) * 1e6


def main() -> None:
    oid = 17561
    mark = struct.pack("!I", oid)
    first = opening(oid)
    numbers = range(ROWS)
    insert, key = b"I" + mark + b"N", tuple_data([b"1", *[None] * 11])
    plain = [tuple_data(text_row(n)) for n in numbers]
    cases = {
        "insert, text": [insert + row for row in plain],
        "insert, text, 3 nulls": [insert + tuple_data(text_row(n, nulls=True)) for n in numbers],
        "insert, text, not ASCII": [
            insert + tuple_data(text_row(n, ascii_only=False)) for n in numbers
        ],
        "update, text": [b"U" + mark + b"N" + row for row in plain],
        "update, text, old row": [b"U" + mark + b"O" + r + b"N" + r for r in plain],
        "delete, text, old key": [b"D" + mark + b"K" + key for _ in plain],
    }
    found = {
        name: round(best(list(enumerate(payloads)), decoder, first), 3)
        for name, payloads in cases.items()
    }
    result: dict[str, object] = {"unit": "us per row, 12 columns", "pgoutput": found}
    bare = DecoderContext(server=ServerInfo(version_num=150000), catalogue=NoCatalogue())
    begin = b'{"action":"B","xid":7,"timestamp":null,"origin":0,"lsn":"0/10","nextlsn":"0/20"}'
    frames = [(n, json_row(n)) for n in numbers]
    result["wal2json"] = {"insert": round(best(frames, lambda: Wal2Json(bare), [(1, begin)]), 3)}
    begin = b"\x08\x07\x10\x05\x20\x03"
    frames = [(n, protobuf_row(n)) for n in numbers]
    found = {"insert": round(best(frames, lambda: DecoderBufs(bare), [(1, begin)]), 3)}
    result["decoderbufs"] = found
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
