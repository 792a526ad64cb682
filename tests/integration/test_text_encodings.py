"""Databases that are not in UTF-8: pgoutput's text is converted by the server, that of the other plugins
by the decoders.
"""

from collections.abc import Iterator

import pytest
from tests.harness.json_lines import DECODERS
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.changes.decode.decoder import SINGLE_BYTE, codec_of

CHARACTERS = """
CREATE FUNCTION meant(code int, encoding text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
  RETURN convert_from(set_byte('\\x00', 0, code), encoding); EXCEPTION WHEN others THEN RETURN NULL;
END $$
"""


def test_each_character_is_the_one_that_the_server_means(database):
    database.execute(CHARACTERS)
    for encoding in SINGLE_BYTE:
        meant = database.execute("SELECT g, meant(g, %s) FROM generate_series(1, 255) g", encoding)
        codec = codec_of(encoding)
        assert codec is not None
        wrong = [
            (encoding, code, text, found)
            for code, text in meant
            if text is not None and (found := bytes([code]).decode(codec, "replace")) != text
        ]
        assert wrong == []
        assert sum(text is not None for _, text in meant) > 160, encoding


@pytest.fixture(params=["LATIN1", "WIN1251"])
def other(server, database, request) -> Iterator[Database]:
    name = f"{database.name}_other"
    server.execute(
        f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING '{request.param}'"
        " LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    made = Database(server, name)
    try:
        yield made
    finally:
        made.drop()


@pytest.mark.parametrize("decoder", list(DECODERS))
def test_streamed_text_is_that_of_the_snapshot(other, tmp_path, decoder):
    """Two bytes of LATIN1 may be one character of UTF-8: those are not taken for it."""
    ((encoding,),) = other.execute("SHOW server_encoding")
    codec = codec_of(encoding)
    assert codec is not None
    every = bytes(code for code in range(0xC0, 0x100)).decode(codec)
    like_utf8 = b"\xc3\xa9 \xd0\xb9".decode(codec)
    name, column = every[10:14], every[30:33]
    other.execute(
        f'CREATE TABLE "{name}" (id int PRIMARY KEY, "{column}" text, v varchar(99));'
        f' ALTER TABLE "{name}" REPLICA IDENTITY FULL; INSERT INTO "{name}" VALUES'
        f" (1, '{every}', '{like_utf8}')"
    )
    pipeline = PipelineRig(other, tmp_path, DECODERS[decoder])
    pipeline.catch_up()
    other.execute(f"INSERT INTO \"{name}\" VALUES (2, '{every}', '{like_utf8}')")
    other.execute(f'UPDATE "{name}" SET id = 3 WHERE id = 2')
    other.execute(f'DELETE FROM "{name}" WHERE id = 1')
    pipeline.catch_up()
    wanted = {column: every, "v": like_utf8}
    events = pipeline.destination.of(f"public.{name}")
    assert [(e.op, {n: v for n, v in e.row.items() if n != "id"}) for e in events] == [
        ("r", wanted),
        ("c", wanted),
        ("u", wanted),
        ("d", wanted),
    ]
