"""Values of every type, from a real server, as its text output.

A module that uses the fixture `typed` imports it.
"""

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.harness.servers.postgres import Database

from waltap.changes.decode.relation import Column
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

OUTPUT = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex"
    " -c extra_float_digits=3 -c lc_monetary=C"
)
SETUP = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree; CREATE EXTENSION postgis;
CREATE TYPE mood AS ENUM ('sad', 'so so', 'it''s "ok"', 'ünï', 'a,b', 'NULL');
CREATE DOMAIN posint AS int CHECK (value > 0);
CREATE DOMAIN amount AS numeric(9,2);
CREATE TYPE pair AS (a int, b text, c numeric(6,2), d timestamptz);
CREATE TYPE floatrange AS RANGE (subtype = float8);
"""

FLOATS = """
    0 -0 1 -1 1.5 0.1 1e-5 0.0001 0.00012345 123456 1234567 1e6 999999 1e15 999999999999999
    9999999999999999 1e16 1.7976931348623157e308 5e-324 2.2250738585072014e-308 NaN Infinity
    -Infinity 1e100 1e22 1e23 0.30000000000000004 100000000000000 123456789012345.6 -2.5e-7 4.35
    2e-44
""".split()
SINGLES = """
    0 -0 1 1e-45 3e-45 1.17549435e-38 3.4028235e38 0.1 16777216 1e6 999999 1000000 123456.7 1234567
    0.0001 0.00009 3.1415927 NaN Infinity -Infinity 8388608.5 33554432 1e10 1.5e-42 9.9999e-41 7e-10
""".split()
NUMERICS = (
    """
    0 0.0 0.000 1 -1 10 100 10000 100000000 1.5 -0.00001 1e30 9999 99990000 0.0001 0.00010
    0.00000001 123456789012345678901234567890.5 NaN Infinity -Infinity 1e-30 12345678.12345678
    1000000000000000000000000 0.1000 10000.0001 -99999999.9999
""".split()
    + ["1" + "0" * 120 + "." + "0" * 60 + "1"]
)
DATES = [
    *("2000-01-01", "1970-01-01", "2024-02-29", "1999-12-31", "0001-01-01", "9999-12-31"),
    *("10000-01-01", "5874897-12-31", "0044-03-15 BC", "0001-12-31 BC", "4713-01-01 BC"),
    *("infinity", "-infinity", "1582-10-04", "1582-10-15", "1900-02-28", "20000-06-15"),
]
CLOCKS = """
    00:00:00 23:59:59.999999 24:00:00 12:34:56.7 00:00:00.000001 01:02:03.45 10:00:00.1 09:08:07
""".split()
STAMPS = [
    f"{date} {clock}" for date in ("2024-02-29", "1969-12-31", "0044-03-15") for clock in CLOCKS
]
STAMPS += [
    *("infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC"),
    *(
        "20000-01-01 00:00:00.5",
        "0001-01-01 00:00:00",
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59",
    ),
    *("0044-03-15 12:00:00 BC", "0044-03-15 12:00:00.123 BC", "2024-02-29 12:34:56.123456"),
]
INTERVALS = [
    *("0", "1 year", "-1 year", "1 mon", "-1 mon", "1 day", "-1 days", "1 year 2 mons 3 days"),
    *("04:05:06.789", "-04:05:06.789", "1 year 2 mons -3 days +04:05:06.7", "-1 mon +2 days"),
    *("-1 mons +2 days -00:00:00.000001", "178000000 years", "100:00:00", "1 day -00:00:01"),
    *("-1 day +00:00:01", "14 mons", "-14 mons", "2 days", "30 days", "1 hour", "-0.000001 secs"),
]
TEXTS = [
    "",
    "plain",
    "é ü 日本語 😀",
    'q"q',
    "back\\slash",
    "tab\tnl\ncr\r",
    " lead trail ",
    "NULL",
    "{x},(y)",
]
ADDRESSES = """
    192.168.0.1 192.168.0.1/24 0.0.0.0/0 255.255.255.255 ::1 :: ::/0 2001:db8::1/64 ::ffff:1.2.3.4
    ::1.2.3.4 fe80::1:0:0:1 1:2:3:4:5:6:7:8 1:0:0:4:5:0:0:8 2001:0:0:1::1 ::ffff:0:0 ::0.0.0.5
    0:0:0:0:0:1:: ::2:3
""".split()
LITERALS: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "int2": ["0", "-1", "32767", "-32768"],
    "int4": ["0", "-1", "2147483647", "-2147483648"],
    "int8": ["0", "-1", "9223372036854775807", "-9223372036854775808"],
    "oid": ["0", "1", "4294967295"],
    "float4": SINGLES,
    "float8": FLOATS,
    "numeric": NUMERICS,
    "numeric(12,2)": ["0", "0.01", "-0.01", "9999999999.99", "-9999999999.99", "NaN", "1", "10000"],
    "numeric(18,4)": ["99999999999999.9999", "0.0001", "1.5", "-123.4567", "10000", "0"],
    "numeric(5)": ["0", "99999", "-10000", "10000", "20000"],
    "numeric(38,10)": ["1234567890123456789012345678.0123456789", "0", "-1"],
    "numeric(3,-2)": ["100", "99900", "-200", "0"],
    "numeric(2,5)": ["0.00012", "0", "-0.00099"],
    "numeric(90,10)": ["1", "12345678901234567890123456789012345678901234567890.5"],
    "money": ["0", "0.01", "-0.01", "1234567.89", "-92233720368547758.08", "92233720368547758.07"],
    "text": TEXTS,
    "varchar(30)": TEXTS,
    "char(12)": ["", "ab", "é😀"],
    '"char"': ["", "a", "\\200", " "],
    "name": ["", "aname", "ñ"],
    "citext": ["CiText", ""],
    "ltree": ["Top.Sub.Leaf", "", "a"],
    "uuid": ["0b5f1a2c-3d4e-4f60-8a7b-9c0d1e2f3a4b", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"b": 1,  "a": [1, 2.50, null]}', "null", '"\\u00e9"'],
    "jsonb": ['{"b": 1,  "a": [1, 2.50, null]}', "null", '"é"', "1e400", "[]"],
    "xml": ["<a b='1'>é</a>", ""],
    "bytea": ["\\x", "\\x00ff10", "\\xdeadbeef"],
    "bit(1)": ["0", "1"],
    "bit(8)": ["10101010", "00000001", "00000000"],
    "bit(10)": ["1111100000", "0000000001"],
    "varbit": ["", "1", "101", "101010101010101010101"],
    "varbit(5)": ["", "10101"],
    "date": DATES,
    "time": CLOCKS,
    "time(3)": CLOCKS,
    "timetz": [
        f"{clock}{zone}" for clock in CLOCKS for zone in ("+00", "+05:30", "-15:59", "+01:02:03")
    ],
    "timestamp": STAMPS,
    "timestamp(3)": STAMPS,
    "timestamp(0)": STAMPS,
    "timestamptz": STAMPS,
    "timestamptz(2)": STAMPS,
    "interval": INTERVALS,
    "inet": ADDRESSES,
    "cidr": ["10.0.0.0/8", "192.168.1.5/32", "::/0", "2001:db8::/32", "::1/128", "0.0.0.0/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "int4range": ["[1,10)", "empty", "(,)", "(,5]", "[3,)"],
    "int8range": ["[1,10)", "[-9223372036854775808,0)"],
    "numrange": ["[1.50,2.5]", "(,1)", "[NaN,NaN]", "(-Infinity,)"],
    "tsrange": ["[2020-01-01 00:00:00,2020-01-02 00:00:00.5)", "[2020-01-01,infinity)", "empty"],
    "tstzrange": ["[2020-01-01 00:00:00+02,)", "(,2020-01-02 00:00:00+00]"],
    "daterange": ["[2020-01-01,2020-02-01]", "[2020-01-01,infinity)", "(,0044-03-15 BC)"],
    "tsvector": ["a:1 fat:2A cat:3B,5C dog", "", "'it''s':4 'back\\\\slash'"],
    "point": ["(1.5,-2.25)", "(1e10,1e-10)", "(NaN,Infinity)", "(0,-0)"],
    "geometry": [
        "POINT(1 2)",
        "SRID=3857;POLYGON((0 0,1 0,1 1,0 0))",
        "POINT EMPTY",
        "POINT Z (1 2 3)",
    ],
    "geography": ["POINT(1 2)", "MULTILINESTRING((1 1,2 2))"],
    "hstore": ['a=>1, b=>NULL, "q u"=>"x\\"y\\\\z"', "", 'é=>"😀", z=>1, a=>2, m=>3, aa=>4'],
    "mood": ["sad", "so so", 'it\'s "ok"', "ünï"],
    "posint": ["1", "7"],
    "amount": ["1.50", "0", "-3"],
    "bool[]": ["{t,f,NULL}", "{}"],
    "int4[]": ["{1,NULL,-3}", "{}", "[2:4]={7,8,9}", "{{1,2},{3,4}}", "{{{1},{2}},{{3},{4}}}"],
    "int8[]": ["{9223372036854775807,NULL}"],
    "float8[]": ["{1.5,NULL,1e300,NaN}"],
    "numeric[]": ["{1,2.50,NULL,NaN}"],
    "numeric(6,2)[]": ["{1,2.5,NULL}"],
    "text[]": [
        '{a,"b,c","q\\"q","back\\\\slash","{x}","NULL",NULL,""," sp ",é😀}',
        "{{a,b},{c,d}}",
        "{}",
    ],
    "varchar(5)[]": ["{a,NULL}"],
    "char(3)[]": ["{a,NULL}"],
    "date[]": ["{2020-01-01,NULL,infinity}"],
    "time[]": ["{01:02:03.5,NULL}"],
    "timestamp[]": ["{2020-01-01 00:00:00.123456,NULL}"],
    "timestamptz[]": ["{2020-01-01 00:00:00+02,NULL}", "[0:1]={2020-01-01 00:00:00+02,NULL}"],
    "timetz[]": ["{01:02:03.5+02,NULL}"],
    "uuid[]": ["{00000000-0000-0000-0000-00000000000a,NULL}"],
    "jsonb[]": ['{"{\\"a\\": [1, \\"x\\"]}","null",NULL}'],
    "inet[]": ["{10.0.0.1,10.0.0.0/8}"],
    "bytea[]": ['{"\\\\x00ff",NULL}'],
    "int4range[]": ['{"[1,3)",empty}'],
    "bit(3)[]": ["{101,NULL}"],
    "bit(1)[]": ["{1,NULL,0}"],
    "int2vector": ["1 2", "", "-32768"],
    "oidvector": ["1 4000000000"],
    "mood[]": ['{sad,"so so","it\'s \\"ok\\"","NULL","a,b"}', "{}", "{sad,NULL}"],
    "hstore[]": ['{"\\"a\\"=>\\"1\\"",NULL}'],
    "citext[]": ["{A,NULL}"],
    "ltree[]": ["{a.b,NULL}"],
    "tsvector[]": ["{'a':1}", "{'a':1,NULL}"],
}
UNKNOWN: dict[str, list[str]] = {
    "posint[]": ["{1,2}"],
    "pg_lsn": ["16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF"],
    "xid": ["0", "4294967295"],
    "xid8": ["18446744073709551615"],
    "jsonpath": ["$", '$."a"[*]?(@ > 1)'],
    "refcursor": ["cur"],
    "box": ["(3,4),(1,2)", "(1e300,1),(0.1,-0.5)"],
    "circle": ["<(1.5,2.5),0>"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0.1,0.2),(0.3,0.4)]"],
    "path": ["[(0,0),(1,1),(2,0)]", "((0,0),(1,1),(2,0))"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "int4multirange": ["{[1,3),[5,7)}", "{}"],
    "tstzmultirange": ["{[2020-01-01 00:00:00+00,2020-01-02 00:00:00+00)}"],
    "pair": ['(1,"x,""y",2.5,"2020-01-01 00:00:00+00")', "(,,,)", '(1,"",,)', "(,back\\\\slash,,)"],
    "box[]": ["{(3,4),(1,2);(7,8),(5,6)}"],
    "int4multirange[]": ['{"{[1,3)}"}'],
    "pair[]": ['{"(1,x,,)",NULL}'],
}


@pytest.fixture(scope="module")
def typed(server: Any) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection to a database with extensions and types of its own."""
    made: Database = server.create_database(f"waltap_test_{os.getpid()}_types")
    made.psql(SETUP)
    with made.connect(options=OUTPUT, autocommit=True) as connection:
        yield connection
    made.drop()


_seen: dict[str, tuple[Column, list[str]]] = {}


def printed_once(
    connection: psycopg.Connection[Any], type_name: str, literals: list[str]
) -> tuple[Column, list[str]]:
    """Return the column as the catalogue has it, and each value's text.

    The server is asked once for each type, whatever number of tests wants its values.
    """
    if type_name not in _seen:
        _seen[type_name] = _printed(connection, type_name, literals)
    return _seen[type_name]


def _printed(
    connection: psycopg.Connection[Any], type_name: str, literals: list[str]
) -> tuple[Column, list[str]]:
    table = "values_of_" + "".join(c if c.isalnum() else "_" for c in type_name)
    connection.execute(f"CREATE TABLE {table} (n serial, x {type_name})".encode())
    for literal in literals:
        insert = f"INSERT INTO {table} (x) VALUES ($1::text::{type_name})".encode()
        result = connection.pgconn.exec_params(insert, [literal.encode()])
        assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (literal, result.error_message)
    result = connection.pgconn.exec_params(f"SELECT x FROM {table} ORDER BY n".encode(), [])
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    texts = [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]
    relation = PostgresCatalogue(connection, PostgresProperties.model_construct()).relation(
        "public", table
    )
    assert relation is not None
    return relation.columns[1], texts
