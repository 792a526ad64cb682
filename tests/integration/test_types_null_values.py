"""Values that become null: each is listed here with its reason, and there are no others.

Every value of a real server's types goes through JSON, Connect and Arrow, under every mode of every
type, from the text that streams and COPY bring and from the send format. What comes out null although
it was none must be told (`TypeOptions.on_misfit`, `TypeOptions.arrow_misfits`) and be in the lists.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg

from tests.harness.typed_values import LITERALS, UNKNOWN, both_once, typed
from waltap.decode.relation import Column
from waltap.arrow.misfit import MisfitCount
from waltap.mapping.type_mapping import ColumnMapping, TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap_testing.installed import installed_types
from waltap_postgres.types.array import parse_array

__all__ = ["typed"]

FORMS: dict[str, dict[str, Any]] = {
    **{
        f"time {mode}": {"time_precision_mode": mode}
        for mode in (
            *("adaptive", "adaptive_time_microseconds", "connect"),
            *("isostring", "microseconds", "nanoseconds"),
        )
    },
    **{f"decimal {m}": {"decimal_handling_mode": m} for m in ("precise", "double", "string")},
    **{f"hstore {m}": {"hstore_handling_mode": m} for m in ("json", "map")},
    **{f"interval {m}": {"interval_handling_mode": m} for m in ("numeric", "string")},
    **{
        f"binary {m}": {"binary_handling_mode": m}
        for m in ("bytes", "base64", "base64-url-safe", "hex")
    },
    "money 0": {"money_fraction_digits": 0},
    "money 4": {"money_fraction_digits": 4},
    "arrays literal": {"multidimensional_arrays": "literal"},
    "dates extreme": {"infinite_date": "extreme"},
    "unknown": {"include_unknown_datatypes": True},
}
"""Every mode of every type, one at a time."""

PRECISE = frozenset(FORMS) - {"decimal double", "decimal string"}
MICROS = frozenset(FORMS) - {"time connect", "time isostring"}
FINE = frozenset({"time microseconds", "time nanoseconds"})
CONNECT: dict[str, dict[str, frozenset[str]]] = {
    # Connect's Decimal is a whole number and a scale
    "numeric is NaN or infinite": dict.fromkeys(("numeric", "numeric(12,2)", "numeric[]"), PRECISE),
    # microseconds since 1970 in 64 bits end in the year 294247, nanoseconds in 2262
    "timestamp exceeds 64 bits": {"timestamp": MICROS, "timestamp(3)": FINE, "timestamp(0)": FINE},
    # the schema is that of Debezium: an array of numbers
    "an inner array, where the schema has one dimension": {"int4[]": frozenset(FORMS)},
}
"""Reason → type → modes: what the Connect type cannot hold, in JSON as in Connect values."""

FAR = "date or timestamp outside years 1 to 9999"
INFINITE = "infinite date or timestamp"
MOMENTS = {"date", "timestamp", "timestamp(0)", "timestamp(3)", "timestamptz", "timestamptz(2)"}
ARROW: dict[str, set[str]] = {
    # the calendars of Python and of Spark end there
    FAR: MOMENTS,
    INFINITE: {*MOMENTS, "date[]"},
    "time 24:00": {"time", "time(3)"},
    "numeric NaN or infinity": {"numeric(12,2)"},
    "array of several dimensions": {"int4[]", "text[]"},
    # the same, where whole columns in send format are converted at once
    "date infinite or out of range": {"date"},
    "timestamp infinite or out of range": MOMENTS - {"date"},
    "time infinite or out of range": {"time", "time(3)"},
}
"""Reason → types: what the Arrow type cannot hold under ``waltap.arrow.misfit=null``."""


def options() -> Iterator[tuple[str, TypeOptions]]:
    for name, modes in FORMS.items():
        yield name, replace(TypeOptions(), **modes)


def nulls(value: Any) -> int:
    """Count what is null, a field as a whole or an element of an array."""
    if isinstance(value, list):
        return sum(map(nulls, value))
    return value is None


def test_what_becomes_null_in_json_and_connect_is_listed(
    typed: psycopg.Connection[Any],
) -> None:
    found: dict[str, dict[str, set[str]]] = {}
    for type_name, literals in (LITERALS | UNKNOWN).items():
        column, values = both_once(typed, type_name, literals)
        for form, chosen in options():
            for why in reasons(type_name, column, values, chosen):
                found.setdefault(why, {}).setdefault(type_name, set()).add(form)
    assert found == CONNECT


def test_what_becomes_null_in_arrow_is_listed(typed: psycopg.Connection[Any]) -> None:
    found: dict[str, set[str]] = {}
    for type_name, literals in (LITERALS | UNKNOWN).items():
        column, values = both_once(typed, type_name, literals)
        counted = MisfitCount()
        chosen = TypeOptions(arrow_misfits=counted, include_unknown_datatypes=True)
        mapping = TypeRegistry(installed_types(), chosen).column(column)
        assert mapping is not None
        assert mapping.arrow is not None
        for text, sent in values:
            arrays = [mapping.arrow.column([text])]
            if mapping.arrow.binary is not None:
                arrays.append(mapping.arrow.binary([sent]))
            told = counted.take()
            for array in arrays:
                if array is not None and array.null_count:
                    assert told, (type_name, text)
            for reason in told:
                found.setdefault(reason, set()).add(type_name)
    assert found == ARROW


def reasons(
    type_name: str, column: Column, values: list[tuple[str, bytes]], chosen: TypeOptions
) -> set[str]:
    """Return why values became null; fail where one did without a reason."""
    told: list[str] = []
    registry = TypeRegistry(
        installed_types(), replace(chosen, on_misfit=lambda _, why: told.append(why))
    )
    mapping = registry.column(column)
    if mapping is None:
        assert type_name in UNKNOWN
        return set()
    assert column.data_type is not None
    every: set[str] = set()
    for text, sent in values:
        given = 0
        if type_name.endswith("[]"):
            given = nulls(parse_array(text, column.data_type.delimiter))
        for read in readings(mapping, text, sent):
            told.clear()
            value = read()
            lost = value is None or nulls(value) > given
            assert lost == bool(told), (type_name, text, chosen)
            every.update(told)
    return every


def readings(mapping: ColumnMapping, text: str, sent: bytes) -> Iterator[Callable[[], Any]]:
    """Yield a value's conversions: to JSON and to Connect, as text and as sent, streamed and read."""
    texts = [text] if mapping.from_binary is None else [text, mapping.from_binary(sent)]
    for form in (mapping, mapping.read):
        for given in texts:
            if form is not None:
                yield partial(_json, form, given)
                yield partial(form.to_connect, given)


def _json(form: ColumnMapping, text: str) -> Any:
    return json.loads(form.json(text))
