"""What a signal's SQL may name and be made of, without a server: trees are as PostgreSQL 15 prints them."""

from typing import Any

import pytest

from waltap.changes.decode.relation import Relation
from waltap_postgres.errors import ConditionRefused
from waltap_postgres.snapshot.condition import ConditionCheck, parse_tree

OID = 16390


def column(number: int) -> str:
    return (
        f"{{VAR :varno 1 :varattno {number} :vartype 23 :vartypmod -1 :varcollid 0 :varlevelsup 0"
        f" :varnosyn 1 :varattnosyn {number} :location 23}}"
    )


def one() -> str:
    return (
        "{CONST :consttype 23 :consttypmod -1 :constcollid 0 :constlen 4 :constbyval true"
        " :constisnull false :location 28 :constvalue 4 [ 1 0 0 0 0 0 0 0 ]}"
    )


def compared(opno: int = 521, opfuncid: int = 147) -> str:
    return (
        f"{{OPEXPR :opno {opno} :opfuncid {opfuncid} :opresulttype 16 :opretset false :opcollid 0"
        f" :inputcollid 0 :args ({column(1)} {one()}) :location 26}}"
    )


def called(funcid: int, retset: str = "false") -> str:
    return f"{{FUNCEXPR :funcid {funcid} :funcresulttype 16 :funcretset {retset} :args ({one()})}}"


def tree(quals: str, *, relid: int = OID, rtekind: int = 0, command: int = 1) -> str:
    return (
        f"{{QUERY :commandType {command} :querySource 0 :canSetTag true :utilityStmt <>"
        " :cteList <> :rtable ({RTE :alias <> :eref {ALIAS :aliasname t :colnames"
        f' ("id" "a\\ b")}} :rtekind {rtekind} :relid {relid} :relkind r}})'
        f" :jointree {{FROMEXPR :fromlist ({{RANGETBLREF :rtindex 1}}) :quals {quals}}}"
        " :targetList <> :stmt_len 0}"
    )


FUNCTIONS = {147: ("int4gt", False, False), 2626: ("pg_sleep", True, False)}
FUNCTIONS |= {1598: ("random", True, False), 2923: ("table_to_xml", False, False)}
FUNCTIONS |= {2597: ("domain_in", False, True), 16401: ("stolen", False, False)}
CHECK = "{OPEXPR :opno 664 :opfuncid %s :opretset false :args ({COERCETODOMAINVALUE :typeId 25})}"


class Server:
    """Answers with one tree, and from a catalogue of a few functions; ``parsed`` counts statements."""

    def __init__(
        self,
        answer: str = "",
        schemas: tuple[str, ...] = ("public",),
        types: tuple[tuple[Any, ...], ...] = (),
    ) -> None:
        self.answer, self.schemas, self.types = answer, schemas, types
        self.parsed: list[str] = []

    def parse(self, sql: str) -> str:
        self.parsed.append(sql)
        return self.answer

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        if "pg_namespace" in sql:
            return [(name,) for name in self.schemas if f"'{name}'" in sql]
        if "WITH RECURSIVE" in sql:
            return list(self.types)
        if "pg_attribute" in sql:
            return [(1, "id"), (2, "a b")]
        if "pg_type" in sql:
            return [(16500, "checked")] if "16500" in sql else []
        return [(oid, *rest) for oid, rest in FUNCTIONS.items() if str(oid) in sql]

    def judge(self) -> ConditionCheck:
        relation = Relation(oid=OID, schema="public", table="t", columns=())
        return ConditionCheck(relation, self.parse, self.ask)


@pytest.mark.parametrize(
    "condition",
    [
        "id > 1",
        "t.id > 1 AND public.t.id < 9",
        '"t"."id" > 1 -- public.steal()',
        "v = 'public.steal()' OR v = $$ mal.evil() $$",
        "id OPERATOR(pg_catalog.>) 1.5e3",
        "v ~ E'a\\'b' /* mal.evil() */",
    ],
)
def test_a_comparison_of_columns_passes(condition: str) -> None:
    server = Server(tree(compared()))
    server.judge().condition('"public"."t"', condition)
    assert len(server.parsed) == 3


@pytest.mark.parametrize(
    "condition",
    [
        "public.steal()",
        "PUBLIC . steal()",
        '"public"."steal"()',
        "public/**/.steal()",
        "public.--\nsteal()",
        "id OPERATOR(mal.===) 1",
        "'x'::mal.dom IS NULL",
        "CAST('x' AS mal.dom) IS NULL",
        "public.t '(1)' IS NULL",
        "'(1)'::public.t IS NULL",
        "'(1)'::public.t.id IS NULL",
        "public.t(1)",
        "'' || $a$ $b$ $a$ = mal.evil()",
        "v = 'it''s' OR mal.evil()",
        "v = E'\\'' OR mal.evil() OR v = ''",
        'U&"mal".evil()',
        "v = U&'x'",
        "ströme.evil()",
    ],
)
def test_a_name_that_is_not_the_tables_is_refused_before_the_server_sees_it(condition: str) -> None:
    server = Server(tree(compared()))
    with pytest.raises(ConditionRefused):
        server.judge().condition('"public"."t"', condition)
    assert not server.parsed


def test_an_alias_may_precede_a_column_unless_a_schema_has_its_name() -> None:
    statement = "SELECT x.* FROM public.t AS x WHERE x.id > 1"
    Server(tree(compared())).judge().statement(statement)
    server = Server(tree(compared()), schemas=("public", "x"))
    with pytest.raises(ConditionRefused):
        server.judge().statement(statement)
    assert not server.parsed


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        (tree(compared(opno=16400)), "an operator that is not built in"),
        (tree(compared(opfuncid=16401)), "calls stolen, which is not built in"),
        (tree(called(16401)), "calls stolen"),
        (tree(called(2626)), "calls pg_sleep, which may have side effects"),
        (tree(called(2923)), "calls table_to_xml"),
        (tree(called(2597)), "calls domain_in, which makes values of any type"),
        (tree(called(147, "true")), "returns a set"),
        (tree("{COERCEVIAIO :arg {CONST} :resulttype 16500}"), "the type checked"),
        (tree("{COERCETODOMAIN :arg {CONST}}"), "COERCETODOMAIN"),
        (tree("{NEWNODE :funcid 147}"), "NEWNODE"),
        (tree(f"{{SUBLINK :subselect {tree(compared())}}}"), "no query of its own"),
        (tree(compared(), relid=1260), "another relation than public.t"),
        (tree(compared(), rtekind=2), "another relation than public.t"),
        (
            tree(compared()).replace(":jointree", f"({{RTE :rtekind 0 :relid {OID}}}) :jointree"),
            "another relation than public.t",
        ),
        (tree(compared(), command=3), "writes"),
        ("", "no query of its own"),
        ("}", "cannot be read"),
    ],
)
def test_what_a_tree_may_not_have_is_refused(printed: str, says: str) -> None:
    with pytest.raises(ConditionRefused, match=says):
        Server(printed).judge().condition('"public"."t"', "id > 1")


def test_functions_that_only_give_other_values_pass() -> None:
    Server(tree(called(1598))).judge().condition('"public"."t"', "random() < 0.1")


def test_names_in_a_tree_are_no_nodes() -> None:
    """The server puts a backslash before what would end a word."""
    (query,) = parse_tree(tree(compared()).replace("a\\ b", "\\{SUBLINK\\}\\ \\:relid"))
    assert {node.tag for node in query.walk()} == {
        *("QUERY", "RTE", "ALIAS", "FROMEXPR", "RANGETBLREF", "OPEXPR", "VAR", "CONST")
    }


def test_a_name_that_looks_like_a_field_is_refused_where_it_would_hide_one() -> None:
    with pytest.raises(ConditionRefused, match="colon"):
        parse_tree("{RTE :relid 1260 :colnames (:relid 16390)}")


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ([("d", None, CHECK % 16401)], "the domain d, of whose CHECK it calls stolen"),
        ([("d", None, CHECK % 2626)], "it calls pg_sleep"),
        ([("d", None, "{SUBPLAN}")], "SUBPLAN"),
        (
            [("d", None, CHECK % 147), ("c", "has a cast by evil", None)],
            "c, which has a cast by evil",
        ),
    ],
)
def test_types_of_columns_that_run_something_are_refused_before_the_sql_is_parsed(
    types: list[tuple[Any, ...]], says: str
) -> None:
    server = Server(tree(compared()), types=tuple(types))
    with pytest.raises(ConditionRefused, match=says):
        server.judge().condition('"public"."t"', "id > 1")
    assert server.parsed == ['SELECT FROM "public"."t"']


def test_a_domain_whose_check_the_server_brings_passes() -> None:
    server = Server(tree(compared()), types=(("d", None, CHECK % 147),))
    server.judge().condition('"public"."t"', "id > 1")


ENTRY = "{TARGETENTRY :expr %s :resno 1 :resname %s :resjunk %s}"
VAR = "{VAR :varno 1 :varattno %s}"


@pytest.mark.parametrize(
    ("entry", "passes"),
    [
        (ENTRY % (VAR % 1, "id", "false"), True),
        (ENTRY % (VAR % 2, "a\\ b", "false"), True),
        (ENTRY % ("{CONST :consttype 23}", "<>", "true"), True),
        (ENTRY % (VAR % 2, "id", "false"), False),
        (ENTRY % (VAR % 0, "id", "false"), False),
        (ENTRY % (VAR % -1, "ctid", "false"), False),
        (ENTRY % ("{CONST :consttype 23}", "id", "false"), False),
        (ENTRY % (VAR % 1, ":id", "false"), False),
    ],
)
def test_a_select_has_the_columns_of_the_table_under_their_names(entry: str, passes: bool) -> None:
    server = Server(tree(compared()).replace(":targetList <>", f":targetList ({entry})"))
    judge = server.judge()
    if passes:
        judge.statement("SELECT id FROM public.t")
    else:
        with pytest.raises(ConditionRefused, match="no column of public.t as it is"):
            judge.statement("SELECT id FROM public.t")
