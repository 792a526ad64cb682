"""SQL that a signal gives, a condition or a SELECT: looked at before it is put into a query.

The server's own parser decides. A condition that parses between parentheses and between brackets closes
neither, so it is one expression and cannot end the query around it; a statement that is prepared is
alone. What its functions may do is asked of the server, too: one that is VOLATILE may have side effects,
and a transaction that is read-only keeps only some of them out (it lets a function terminate a
backend, drop a replication slot or write a logical message).
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from waltap_postgres.errors import ConditionRefused

__all__ = ["check_condition", "check_statement"]

CALL = re.compile(r'(?:"((?:[^"]|"")+)"|([a-z_][a-z0-9_$]*))\(')
TEXT = re.compile(r"'(?:[^']|'')*'")

HARMLESS = frozenset({"random", "clock_timestamp", "timeofday", "gen_random_uuid"})
"""Volatile functions that only give another value each time."""

Ask = Callable[[str], list[tuple[Any, ...]]]


def check_condition(ask: Ask, table: str, condition: str) -> None:
    """Refuse what is not one boolean expression over ``table`` (quoted) or may have side effects.

    ``ask`` runs one statement by the protocol that takes no second one, and returns its rows. Nothing
    of the condition is run. Raises: SourceError with the server's words, ConditionRefused.
    """
    ask(f"EXPLAIN SELECT FROM {table} WHERE (ARRAY[{condition}\n]::boolean[])[1]")
    ((plan,),) = ask(
        f"EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) SELECT FROM {table} WHERE ({condition}\n)"
    )
    _refuse_effects(ask, plan)


def check_statement(ask: Ask, statement: str) -> None:
    """Refuse what is not one SELECT or may have side effects; as `check_condition`.

    What parses behind EXPLAIN's options is one whole statement: it closes no parenthesis around it.
    """
    ((plan,),) = ask(f"EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) {statement}")
    _refuse_effects(ask, plan)


def _refuse_effects(ask: Ask, plan: Any) -> None:
    document = plan if isinstance(plan, list) else json.loads(plan)
    if any("ModifyTable" in str(node) for node in _node_types(document)):
        raise ConditionRefused("the statement writes; a snapshot only reads")
    called = set(_called(document)) - HARMLESS
    if not called:
        return
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(called))
    rows = ask(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE provolatile = 'v'"
        f" AND proname = ANY(ARRAY[{names}]::name[]) ORDER BY 1"
    )
    if rows:
        volatile = ", ".join(name for (name,) in rows)
        raise ConditionRefused(
            f"the condition calls {volatile}, which may have side effects (VOLATILE); a function "
            "without any can be declared STABLE",
        )


def _node_types(plan: object) -> Iterator[object]:
    """Yield the kinds of the nodes of a plan."""
    if isinstance(plan, dict):
        yield plan.get("Node Type", "")
        for value in plan.values():
            yield from _node_types(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from _node_types(value)


def _called(plan: object) -> Iterator[str]:
    """Yield the names of the functions that a plan calls, as its expressions show them."""
    if isinstance(plan, dict):
        for value in plan.values():
            yield from _called(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from _called(value)
    elif isinstance(plan, str):
        for quoted, plain in CALL.findall(TEXT.sub("''", plan)):
            yield quoted.replace('""', '"') or plain
