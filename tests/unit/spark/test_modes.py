"""What a profile says of how tables are kept, and which tables cannot be kept so."""

import pytest

from waltap.errors import ConfigurationError
from waltap_spark.modes import PLAIN, ModeRules, TableMode, row_columns, row_key, said, unfit
from waltap_spark.output import TableState
from waltap_spark.plugin import _keeps
from waltap_spark.settings import apply_options, pairs_of, properties_of

RULES = ModeRules(
    modes=(r"public\.audit.*:append", r"public\.Orders:scd2", "scd1"),
    deletes=(r"public\.people:soft",),
)


def test_the_first_pattern_that_matches_a_whole_name_counts_in_any_case() -> None:
    assert RULES.of("public.audit_2025") == TableMode(name="append")
    assert RULES.of("public.orders") == TableMode(name="scd2")
    assert RULES.of("public.orders_old") == PLAIN
    assert RULES.of("public.people") == TableMode(deletes="soft")


def test_a_profile_and_a_driver_say_the_same() -> None:
    pairs = ["mode=public\\.o:scd2,append", "deletes=soft", "extra.columns=_xid,_commit_ts"]
    pairs.append("history=public\\.o:keep,none")
    made = properties_of(pairs, "lake")
    again = properties_of(pairs_of(made), "lake")
    rules = apply_options(again).modes
    assert rules.of("public.o") == TableMode(
        name="scd2", deletes="soft", extra=("_xid", "_commit_ts")
    )
    assert _keeps(again, "public.o") == "scd2, deletes soft, with _xid, _commit_ts"
    assert _keeps(again, "public.x") == "append"


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("mode=scd3", "scd3"),
        ("mode=scd1,scd2", "both for all"),
        ("mode=public.(:scd2", "public.("),
        ("deletes=maybe", "hard, soft, kept"),
        ("history=no", "keep, none"),
        ("extra.columns=_sub", "_sub"),
    ],
)
def test_what_is_no_rule_is_refused_before_anything_starts(pair: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        properties_of([pair], "lake")
    assert told in str(refused.value)


def test_only_rows_that_a_key_identifies_go_without_a_history() -> None:
    alone = ModeRules(history=("none",)).of("public.t")
    assert said(alone) == "scd1, without history"
    assert unfit(alone, ("id",), {"id": ""}) == ""
    assert "no key" in unfit(alone, (), {"id": ""})
    for deletes in ("soft", "kept"):
        rules = ModeRules(deletes=(deletes,), history=("none",))
        assert "rows of the past" in unfit(rules.of("public.t"), ("id",), {"id": ""})
    assert ModeRules(modes=("append",), history=("none",)).of("public.t") == TableMode(
        name="append"
    )


def test_versions_are_rows_by_the_position_they_begin_at() -> None:
    table = TableState(
        schema="s", table="t", key=("id",), columns={"id": '"long"'}, kept_as=TableMode(name="scd2")
    )
    assert row_key(table) == ("id", "_from_epoch", "_from_lsn")
    assert [*row_columns(table)][:3] == ["id", "_valid_from", "_valid_to"]


def test_tables_without_key_and_names_that_clash_are_named() -> None:
    soft = TableMode(deletes="soft")
    assert "no key" in unfit(soft, (), {"a": ""})
    assert "_DELETED_at" in unfit(soft, ("id",), {"id": "", "_DELETED_at": ""})
    assert unfit(soft, ("id",), {"id": ""}) == unfit(TableMode(name="append"), (), {"a": ""}) == ""
    assert said(soft) == "scd1, deletes soft"
