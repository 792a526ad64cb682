"""What each recorded scenario says, worked out from golden/captures/scenarios.sql by hand.

Tables that pgoutput publishes, in pgoutput's terms: publications p_all, p_ins (insert, truncate),
p_filter (v > 10), p_cols (id, v).
"""

from typing import Any

from tests.harness.stated_changes import stated_changes

from waltap.changes.decode import ABSENT

A, C = ABSENT, ("C",)
LONG = {"{T}": "T" * 2100, "{N}": "N" * 2100, "{K}": "K" * 2300}
ODD, FILTER, GEN = 'Odd Schema.Odd "T.a,b', "public.t_filter", "public.t_gen"
TYPES_COLUMNS = (
    "id i2 i8 f4 f8 n n2 b c vc tx by d t ttz ts tstz iv u j jb ia ta o m pt ip bt vb r mr x q nm h ci "
    "ts3 mac cd md pi pr tsv lsn"
).split()


def types_row(**values: str | None) -> tuple[Any, ...]:
    return "I", "public.t_types", tuple(values.get(name) for name in TYPES_COLUMNS)


EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    name: stated_changes(text, LONG)
    for name, text in {
        "insert": """
            I t_default 1|one|1.50|NULL
            I t_full 1|one|1.50|NULL
            I t_index 1|u1|one|NULL
            I t_nothing 1|one|1.50|NULL
            I t_nopk 1|one|NULL
        """,
        "insert_toast": """
            I t_default 2|two|2.00|{T}
            I t_full 2|two|2.00|{T}
            I t_index 2|u2|two|{T}
            I t_nothing 2|two|2.00|{T}
            I t_nopk 2|two|{T}
        """,
        "update_nonkey": """
            U t_default 1|uno|1.50|NULL
            U t_full 1|uno|1.50|NULL <- 1|one|1.50|NULL
            U t_index 1|u1|uno|NULL
        """,
        "update_unchanged_toast": """
            U t_default 2|dos|2.00|=
            U t_full 2|dos|2.00|= <- 2|two|2.00|{T}
            U t_index 2|u2|dos|=
        """,
        "update_key": """
            U t_default 20|dos|2.00|= <- 2|-|-|-
            U t_full 20|dos|2.00|= <- 2|dos|2.00|{T}
            U t_index 2|u20|dos|= <- -|u2|-|-
            U t_index 20|u20|dos|=
        """,
        "update_toast_changed": """
            U t_default 20|dos|2.00|{N}
            U t_full 20|dos|2.00|short <- 20|dos|2.00|{T}
        """,
        "update_noop": """
            U t_default 1|uno|1.50|NULL
        """,
        "delete": """
            D t_default 20|-|-|-
            D t_full 20|dos|2.00|short
            D t_index -|u20|-|-
        """,
        "toasted_key": """
            I t_bigkey {K}|1
            U t_bigkey =|2 <- {K}|-
            D t_bigkey {K}|-
        """,
        "truncate": """
            T t_default 00
            T t_fk_parent,t_fk_child 11
            T t_full,t_nothing,t_nopk 00
        """,
        "multi": """
            M in-tx survives rollback
            + I t_default 100|m100|100.00|NULL
            + I t_default 101|m101|101.00|NULL
            + I t_default 102|m102|102.00|NULL
            + I t_default 104|kept|0.00|NULL
            + U t_default 100|x|100.00|NULL
            + D t_default 101|-|-|-
        """,
        "generated": """
            I t_gen 1|5|it's "x"
            U t_gen 1|6|it's "x"
        """,
        "partition": """
            I t_part_1 1|p1|10
            + I t_part_2 20|150|p2
            U t_part_1 1|p1|11
            D t_part_1 1|-|-
            + I t_part_2 11|160|p1
            D t_part_2 -|150|-
            T t_part_1,t_part_2 00
        """,
        "rowfilter": """
            I t_filter 2|50|s
            I t_filter 1|60|s
            D t_filter 2|50|s
            U t_filter 1|61|s <- 1|60|s
            D t_filter 1|61|s
        """,
        "columnlist": """
            I t_cols 1|2
            U t_cols 1|2
            U t_cols 3|2 <- 1|-
            D t_cols 3|-
        """,
        "ddl": """
            I t_ddl 1|1|one
            I t_ddl 2|2|before
            + I t_ddl 3|3|added|1.25
            + I t_ddl 4|dropped|2.50
            + I t_ddl 5|retyped|3.00
            U t_ddl 1|u|9.50 <- 1|one|9.50
            D t_ddl2 1|u|9.50
        """,
        "origin": """
            I t_default 300|from origin|1.00|NULL
        """,
        "twophase": """
            I t_default 400|2pc|1.00|NULL
        """,
    }.items()
}
EXPECTED |= {
    "message": [
        ("M", True, "pfx", "transactional ✓".encode()),
        C,
        ("M", False, "pfx", b"non-transactional"),
        ("M", True, "", b"\x00\xffAB\x00"),
        C,
    ],
    "strings": [
        ("I", "public.t_default", ("200", "", "0.00", None)),
        C,
        ("I", "public.t_default", ("201", "quote ' dq \" bs \\ nl\ntab\tctl\x01 é€😀 null NULL \\N", "0.00", "")),
        C,
    ],
    "names": [
        ("I", ODD, ("1", "v", "ok", '{"(1,\\"a,b\\")",NULL}', "7")),
        C,
        ("U", ODD, ("2", "w", "ok", '{"(1,\\"a,b\\")",NULL}', "7"), ("1", A, A, A, A)),
        C,
    ],
    "types": [
        types_row(
            id="1", i2="-32768", i8="9223372036854775807", f4="1.1", f8="0.30000000000000004",
            n="123456789012345678901234567890.12345678901234567890", n2="1.500", b="t", c="ab   ", vc="vc",
            tx="text", by="\\xdeadbeef00", d="2024-02-29", t="23:59:59.999999", ttz="12:34:56.789+05:30",
            ts="2024-02-29 12:34:56.789012", tstz="2024-02-29 10:34:56.789012+00",
            iv="1 year 2 mons 3 days 04:05:06.7", u="a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            j='{"a" : 1,  "b":[null]}', jb='{"a": 1.0, "b": [null]}', ia="{1,NULL,-3}",
            ta='{a,"b c","q\\"d","",NULL,"NULL","back\\\\slash","co,mma"}', o="4294967295", m="$12,345.67",
            pt="(1.5,-2)", ip="192.168.1.5/24", bt="1010", vb="101", r="[1,10)", mr="{[1,3),[5,8)}",
            x='<a x="1">t</a>', q="c", nm="nm", h='"a"=>"1", "b c"=>NULL', ci="CiText",
            ts3="2024-02-29 12:34:56.789", mac="08:00:2b:01:02:03", cd="10.0.0.0/8", md='it\'s "fine"',
            pi="5", pr='(1,"a ""q"", b")', tsv="'cat':1 'fat':2", lsn="16/B374D848",
        ),
        C,
    ],
    "types_null": [types_row(id="2"), C],
    "types_odd": [
        types_row(
            id="3", f4="NaN", f8="Infinity", n="NaN", n2="-0.001", b="f", c="     ", vc="", tx="", by="\\x",
            d="infinity", t="24:00:00", ttz="24:00:00-15:59", ts="infinity", tstz="-infinity",
            iv="-1 mons +2 days -00:00:00.000001", ia="{}", ta="{}", r="empty", mr="{}", jb="null",
            m="-$0.01", bt="0000",
        ),
        C,
        types_row(
            id="4", f4="-Infinity", f8="-0", n="Infinity", d="0044-03-15 BC", ts="0044-03-15 01:02:03 BC",
            tstz="4713-01-01 00:00:00+00 BC", iv="00:00:00", ia="[0:1]={7,8}", ta="{{a,b},{c,NULL}}",
            r="(,)", by="\\x5c27",
        ),
        C,
        types_row(
            id="5", f4="3.4028235e+38", f8="5e-324", n="-Infinity", d="5874897-12-31",
            ts="294276-12-31 23:59:59.999999", iv="178000000 years", r="[5,)",
        ),
        C,
        types_row(id="6", f4="1e-45", f8="1e+21", n="0.00000000000000000001", n2="1234567.891"),
        C,
    ],
}  # fmt: skip
