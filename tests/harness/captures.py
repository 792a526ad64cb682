"""The recorded sessions under tests/golden/captures, and decoders made for each of them."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from waltap.changes.decode import (
    Change,
    Commit,
    Decoder,
    DecoderContext,
    Delete,
    Frame,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RelationSeen,
    ServerInfo,
    Truncate,
    Update,
    singly,
)
from waltap.changes.transactions.position import parse_lsn
from waltap_decoders.decoderbufs import DecoderBufs
from waltap_decoders.pgoutput import PgOutput
from waltap_decoders.wal2json import Wal2Json
from waltap_decoders.yboutput import YbOutput
from waltap_testing.recording import StaticCatalogue

FOLDER = Path(__file__).parent.parent / "golden" / "captures"

Make = Callable[[], Decoder]


def recorded_catalogue() -> StaticCatalogue:
    """Return the catalogue as pgoutput's Relation messages of the recordings show it, last version."""
    return StaticCatalogue(_recorded_relations().values())


def context(
    *,
    version: int = 150020,
    catalogue: Any = None,
    captures: Callable[[str, str], bool] | None = None,
    describe: Callable[[Relation], Relation] | None = None,
    two_phase_slot: bool = False,
    publications: tuple[str, ...] = ("p",),
    **options: object,
) -> DecoderContext:
    """Return a context; ``options`` are given with __ for the dot: ``pgoutput__two_phase=True``."""
    return DecoderContext(
        server=ServerInfo(version_num=version, two_phase_slot=two_phase_slot),
        catalogue=catalogue or StaticCatalogue(),
        publications=publications,
        options={
            name.replace("__", ".", 1).replace("_OF_", "-"): value
            for name, value in options.items()
        },
        captures=captures,
        describe=describe,
    )


def pgoutput(**arguments: Any) -> PgOutput:
    return PgOutput(context(**arguments))


def yboutput(**arguments: Any) -> YbOutput:
    return YbOutput(context(**arguments))


def wal2json(format_version: str = "2", *, chunks: bool = False, **arguments: Any) -> Wal2Json:
    made = context(**{"catalogue": recorded_catalogue(), **arguments})
    options = dict(made.options) | {
        "wal2json.format-version": format_version,
        "wal2json.write-in-chunks": chunks,
    }
    return Wal2Json(
        DecoderContext(
            server=made.server,
            catalogue=made.catalogue,
            options=options,
            captures=made.captures,
            describe=made.describe,
        )
    )


def decoderbufs(**arguments: Any) -> DecoderBufs:
    return DecoderBufs(context(**{"catalogue": recorded_catalogue(), **arguments}))


READERS: dict[str, Make] = {
    "pgoutput_v1": pgoutput,
    "pgoutput_v1_root": pgoutput,
    "pgoutput_v2_stream": lambda: pgoutput(pgoutput__streaming="on"),
    "pgoutput_v3_twophase": lambda: pgoutput(pgoutput__two_phase=True),
    "pgoutput_v3_stream_twophase": lambda: pgoutput(
        pgoutput__two_phase=True, pgoutput__streaming="on"
    ),
    "pg16/pgoutput_v1": lambda: pgoutput(version=160002),
    "pg16/pgoutput_v2_stream": lambda: pgoutput(version=160002, pgoutput__streaming="on"),
    "pg16/pgoutput_v3_twophase": lambda: pgoutput(version=160002, pgoutput__two_phase=True),
    "pg16/pgoutput_v3_stream_twophase": lambda: pgoutput(
        version=160002, pgoutput__two_phase=True, pgoutput__streaming="on"
    ),
    "pg16/pgoutput_v4_parallel": lambda: pgoutput(version=160002, pgoutput__streaming="parallel"),
    "pg16/pgoutput_v4_parallel_twophase": lambda: pgoutput(
        version=160002, pgoutput__streaming="parallel", pgoutput__two_phase=True
    ),
    "wal2json_v1": lambda: wal2json("1"),
    "wal2json_v1_all": lambda: wal2json("1"),
    "wal2json_v1_pretty": lambda: wal2json("1"),
    "wal2json_v1_chunks": lambda: wal2json("1", chunks=True),
    "wal2json_v2": wal2json,
    "wal2json_v2_all": wal2json,
    "decoderbufs": decoderbufs,
}
"""Recording → how to make the decoder that reads it."""

NOT_JSON = frozenset(
    {
        ("wal2json_v1_all", "generated"),
        ("wal2json_v2_all", "generated"),
        ("wal2json_v1", "w2j_badjson"),
        ("wal2json_v1", "w2j_invalid_utf8"),
        ("wal2json_v1_all", "w2j_badjson"),
        ("wal2json_v1_all", "w2j_invalid_utf8"),
        ("wal2json_v2", "w2j_badjson"),
        ("wal2json_v2", "w2j_invalid_utf8"),
        ("wal2json_v2_all", "w2j_badjson"),
        ("wal2json_v2_all", "w2j_invalid_utf8"),
    }
)
"""What the plugin sent is not JSON, or not UTF-8, there."""


@cache
def sessions(name: str) -> dict[str, list[Frame]]:
    """Return the frames of one recording by scenario."""
    found: dict[str, list[Frame]] = {}
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if "lsn" in entry:
                text = entry.get("text")
                data = bytes.fromhex(entry["hex"]) if text is None else text.encode()
                found.setdefault(entry["scenario"], []).append((parse_lsn(entry["lsn"]), data))
    return found


def all_sessions() -> Iterator[tuple[str, str]]:
    """Yield (recording, scenario) of everything that decodes."""
    for name in READERS:
        for scenario in sessions(name):
            if (name, scenario) not in NOT_JSON:
                yield name, scenario


def decoded(name: str, scenario: str) -> list[Message]:
    return READERS[name]().feed(sessions(name)[scenario])


@cache
def _recorded_relations() -> dict[tuple[str, str], Relation]:
    found: dict[tuple[str, str], Relation] = {}
    for frames in sessions("pgoutput_v1").values():
        for message in pgoutput().feed(frames):
            if isinstance(message, RelationSeen):
                relation = message.relation
                found[relation.schema, relation.table] = relation
    return found


def reported(
    messages: list[Message], *, tables: frozenset[str] | None = None
) -> list[tuple[Any, ...]]:
    """Return what changes say, as plain tuples: (op, table, new, old), ("T", tables, …) and so on.

    Commits are kept as "C", so that the grouping shows.
    """
    found: list[tuple[Any, ...]] = []
    for message in singly(messages):
        match message:
            case Insert():
                one: tuple[Any, ...] = ("I", message.relation.name, message.new)
            case Update():
                one = ("U", message.relation.name, message.new, message.old)
            case Delete():
                one = ("D", message.relation.name, message.old)
            case Truncate():
                names = [relation.name for relation in message.relations]
                one = ("T", names, message.cascade, message.restart_identity)
            case LogicalMessage():
                one = ("M", message.transactional, message.prefix, message.content)
            case Commit():
                one = ("C",)
            case _:
                continue
        if tables is None or not isinstance(one[1:2], tuple) or one[0] in "TMC" or one[1] in tables:
            found.append(one)
    return found


def changes(messages: list[Message]) -> list[Change]:
    kinds = (Insert, Update, Delete, Truncate, LogicalMessage)
    return [message for message in messages if isinstance(message, kinds)]
