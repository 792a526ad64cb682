"""Records of whole workloads, byte by byte as Debezium recorded them."""

import pytest

from tests.unit.json.rig import Server, assert_as_recorded, table
from waltap.decode.tuple_image import UNCHANGED

RI = ("id int4 not null", "a text not null", "b text", "c int4 default 5")


def replica_identities() -> Server:
    s = Server()
    ri_default = table("ri_default", *RI, identity="d")
    ri_full = table("ri_full", *RI, identity="f")
    ri_nothing = table("ri_nothing", *RI, identity="n")
    ri_index = table("ri_index", *RI, identity="i", index=("a",))
    full_nopk = table("ri_full_nopk", *RI[1:], identity="f", key=())
    index_nopk = table(
        "ri_index_nopk",
        "a text not null",
        "b text",
        "c int4 not null default 5",
        identity="i",
        key=("c", "a"),
        index=("c", "a"),
    )
    three = [("1", "a1", "b1", "5"), ("2", "a2", None, "6"), ("3", "a3", "b3", None)]
    two = [("1", "a1", "b1", "5"), ("2", "a2", None, "5")]
    s.insert(ri_default, *three)
    s.insert(ri_full, *three)
    s.insert(ri_nothing, *two)
    s.insert(ri_index, *two)
    s.insert(full_nopk, *(row[1:] for row in three))
    s.insert(index_nopk, ("a1", "b1", "1"), ("a2", None, "2"))
    for relation in (ri_default, ri_full):
        keeps = relation.identity == "f"
        new = ("1", "a1", "new", "5")
        s.update(relation, new, three[0] if keeps else None)
        s.update(relation, ("20", "a2", None, "6"), three[1])
        if relation is ri_full:
            s.update(relation, three[2], three[2] if keeps else None)
        s.delete(relation, three[2])
    s.update(ri_index, ("1", "a1", "new", "5"))
    s.update(ri_index, ("2", "A2", None, "5"), two[1])
    s.update(ri_index, ("20", "A2", None, "5"))
    s.delete(ri_index, ("1", "a1", "new", "5"))
    s.update(full_nopk, ("a1", "new", "5"), ("a1", "b1", "5"))
    s.delete(full_nopk, three[2][1:])
    s.update(index_nopk, ("a1", "new", "1"))
    s.update(index_nopk, ("a2", None, "30"), ("a2", None, "2"))
    s.delete(index_nopk, ("a1", "new", "1"))
    return s


@pytest.mark.parametrize("variant", ["replica_identity", "replica_identity:no_tombstones"])
def test_every_replica_identity(variant: str) -> None:
    assert_as_recorded(variant, replica_identities())


def test_key_changes_composite_keys_and_tables_without_key() -> None:
    s = Server()
    single = table("single", "id int4 not null", "v text")
    composite = table(
        "composite", "b text", "a int4 not null", "c uuid not null", "v text", key=("c", "a")
    )
    nopk = table("nopk", "a int4", "b text", key=(), identity="f")
    insert_only = table("nopk_insert_only", "a int4", "b text", key=())
    uniq = table("uniq", "a int4 not null", "b text", key=("a",), identity="f")
    only_key = table("only_key", "id int4 not null")
    wide_key = table(
        "wide_key",
        "a text not null",
        "b date not null",
        "c numeric(6,2) not null",
        "d bytea not null",
        "e bool not null",
        "v int4",
        key=("a", "b", "c", "d", "e"),
    )
    s.insert(single, ("1", "one"), ("2", "two"))
    s.update(single, ("10", "one"), ("1", "one"))
    s.update(single, ("2", "two"))
    s.begin()
    s.update(single, ("110", "one"), ("10", "one"))
    s.update(single, ("102", "two"), ("2", "two"))
    s.update(single, ("110", "one!"))
    s.update(single, ("102", "two!"))
    s.commit()
    u, v = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
    s.insert(composite, ("b", "1", u, "v"))
    s.update(composite, ("b", "1", u, "w"))
    s.update(composite, ("b", "2", u, "w"), ("b", "1", u, "w"))
    s.update(composite, ("B", "3", v, "w"), ("b", "2", u, "w"))
    s.delete(composite, ("B", "3", v, "w"))
    s.insert(nopk, ("1", "x"), ("1", "x"), ("2", None))
    s.update(nopk, ("2", "y"), ("2", None))
    s.delete(nopk, ("1", "x"), ("1", "x"))
    s.insert(insert_only, ("1", "x"), (None, None))
    s.insert(uniq, ("1", "x"))
    s.update(uniq, ("2", "x"), ("1", "x"))
    s.delete(uniq, ("2", "x"))
    s.insert(only_key, ("1",), ("2",))
    s.update(only_key, ("3",), ("1",))
    s.delete(only_key, ("2",), ("3",))
    key = ("a", "2020-01-01", "1.50", "\\x00ff")
    s.insert(wide_key, (*key, "t", "1"))
    s.update(wide_key, (*key, "t", "2"))
    s.update(wide_key, (*key, "f", "2"), (*key, "t", "2"))
    s.delete(wide_key, (*key, "f", "2"))
    assert_as_recorded("pk_change", s)


def truncates_and_messages(*, publishes_rows: bool) -> Server:
    s = Server(publishes_rows=publishes_rows)
    a = table("a", "id int4 not null", "v text")
    b = table("b", "id int4 not null", "a_id int4")
    c = table("c", "id int4 not null default nextval('c_id_seq'::regclass)", "v text")
    s.insert(a, ("1", "x"))
    s.insert(b, ("1", "1"))
    s.insert(c, ("1", "c"))
    s.message("pre", b"transactional alone")
    s.message("pre", b"not transactional", transactional=False)
    # a message outside transactions overtakes the transaction that it was sent in
    s.begin()
    s.insert(a, ("2", "y"))
    s.message("in-tx", b"between")
    s.message("in-tx", b"at once", transactional=False)
    s.insert(a, ("3", "z"))
    s.commit()
    s.message("rolled", b"seen in spite of rollback", transactional=False, followed=False)
    s.truncate(c)
    s.truncate(a, b)
    s.insert(a, ("1", "again"))
    s.truncate(a, b)
    s.begin()
    s.insert(c, ("2", "gone"))
    s.truncate(c)
    s.insert(c, ("3", "stays"))
    s.commit()
    s.message("pre", b"")
    s.message("äé", "ünïcode 😀".encode())
    s.message("bytes", b"\x00\xff\x10")
    s.update(c, ("3", "u"))
    s.delete(c, ("3", "u"))
    return s


@pytest.mark.parametrize("variant", ["none", "default", "skip_cud", "prefixes", "tx"])
def test_truncates_and_logical_messages(variant: str) -> None:
    server = truncates_and_messages(publishes_rows=variant != "skip_cud")
    assert_as_recorded(f"truncate_messages:{variant}", server)


def transactions(*, hidden: bool) -> Server:
    """Transactions with savepoints, of which the server sends what was kept. ``hidden``: rows of a
    table that the include list may leave out are published too."""
    s = Server()
    a = table("a", "id int4 not null", "v text")
    b = table("b", "id int4 not null", "v text")
    other = table("hidden", "id int4 not null")
    nopk = table("nopk", "v text", key=())
    s.insert(a, ("1", "alone"))
    s.begin()
    s.insert(a, ("2", "two"))
    s.insert(b, ("1", "one"))
    s.insert(a, ("3", "three"))
    s.update(b, ("1", "uno"))
    s.delete(a, ("2", "two"))
    s.insert(nopk, ("n",))
    s.commit()
    s.begin()
    s.insert(a, ("60", "kept"))
    s.insert(a, ("62", "kept"))
    s.commit()
    if hidden:
        s.insert(other, ("1",))
    s.begin()
    if hidden:
        s.insert(other, ("2",))
    s.insert(a, ("70", "with hidden"))
    s.commit()
    s.update(a, ("71", "with hidden"), ("70", "with hidden"))
    s.begin()
    s.insert(a, ("80", "do"))
    s.insert(b, ("80", "handled"))
    s.commit()
    return s


@pytest.mark.parametrize(
    ("variant", "hidden"), [("", True), (":filtered", False), (":topic", True)]
)
def test_transaction_metadata(variant: str, hidden: bool) -> None:
    assert_as_recorded(f"tx_metadata{variant}", transactions(hidden=hidden))


PEOPLE = (
    "id int4 not null",
    "name text not null",
    "email varchar(50)",
    "phone bpchar(12)",
    "secret text default 's'::text",
    "age int2",
    "notes varchar(200)",
    "born date",
)


def people_and_others(*, left_out: tuple[str, ...] = ()) -> Server:
    s = Server()
    people = table("people", *PEOPLE, identity="f")
    keyed = table(
        "keyed", "id int4 not null", "region text not null", "code int4 not null", "v text"
    )
    nokey = table("nokey", "region text", "code int4", "v numeric(8,3)", key=(), identity="f")
    odd = table(
        "odd names",
        '"first-name" text',
        '"2nd" int4',
        '"a.b" text',
        '"ünï" text',
        '"sel$" int4',
        "id int4 not null",
    )
    note = "a rather long note that will be cut"
    ann = ("1", "Ann Example", "ann@example.org", "0123456789  ", "hush", "42", note, "1980-02-03")
    bo = ("2", "Bo", None, None, None, None, None, None)
    smile = "😀"
    name, born = f"Çelik Ünal {smile * 2}", "0001-01-01"
    celik = ("3", name, "ç@example.org", "x           ", "", "-1", smile * 6, born)
    for row in (ann, bo, celik):
        s.insert(people, row)
    s.update(people, (*ann[:4], "changed", "42", "short", ann[7]), ann)
    s.update(people, ("30", *celik[1:]), celik)
    s.delete(people, bo)
    s.insert(keyed, ("1", "eu", "7", "x"))
    s.update(keyed, ("1", "eu", "7", "y"))
    s.update(keyed, ("1", "us", "7", "y"))
    s.update(keyed, ("2", "us", "7", "y"), ("1", "us", "7", "y"))
    s.delete(keyed, ("2", "us", "7", "y"))
    s.insert(nokey, ("eu", "7", "1.500"), (None, None, None))
    s.update(nokey, ("eu", "7", "2.000"), ("eu", "7", "1.500"))
    s.delete(nokey, ("eu", "7", "2.000"))
    s.insert(odd, ("f", "2", "ab", "u", "1", "1"))
    s.update(odd, ("f", "3", "ab", "u", "1", "1"))
    return s


@pytest.mark.parametrize(
    "variant",
    [
        "adjust_avro",
        "adjust_unicode",
        "datatype_source",
        "exclude",
        "include",
        "keys",
        "mask",
        "mask_hash_v2",
        "source_types",
        "table_exclude",
    ],
)
def test_columns_filtered_masked_and_renamed(variant: str) -> None:
    assert_as_recorded(f"columns:{variant}", people_and_others())
