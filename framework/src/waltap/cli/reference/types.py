"""The page of types: every sample in each mode."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from waltap.base.text import GENERATED, table
from waltap.changes.arrow.column import strings
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeOptions, TypeSample
from waltap.changes.mapping.type_registry import TypeRegistry, TypeSpec
from waltap.errors import SinkError

# Field of `TypeOptions` → Debezium's property and its values other than the default.
MODES: dict[str, tuple[str, tuple[str, ...]]] = {
    "time_precision_mode": (
        "time.precision.mode",
        (
            "adaptive_time_microseconds",
            "connect",
            "isostring",
            "microseconds",
            "nanoseconds",
        ),
    ),
    "decimal_handling_mode": ("decimal.handling.mode", ("double", "string")),
    "hstore_handling_mode": ("hstore.handling.mode", ("map",)),
    "interval_handling_mode": ("interval.handling.mode", ("string",)),
    "binary_handling_mode": ("binary.handling.mode", ("base64", "base64-url-safe", "hex")),
    "composite_types": ("waltap.composite.types", ("struct",)),
    "include_unknown_datatypes": ("include.unknown.datatypes", ("true",)),
}

HEADINGS = ("type", "mode", "Connect schema", "value", "JSON", "Arrow", "does not fit")

INTRODUCTION = """\
What a column becomes: its Connect schema, the JSON of a sample value, and the Arrow type of the
change log and of Spark tables. The first row of a type holds with every mode at its default; further
rows are the modes that change it. A mode that is not named changes nothing.

A schema is optional where the column may be null, and carries the column's default where Debezium can
show it: literals, and a substitute for calls (0, "", false, 1970-01-01). `Decimal` is base64 of the
unscaled number. Types that are left out have no field at all.

Values that a form cannot hold are in the last column. In JSON they follow
`event.converting.failure.handling.mode`: `fail` stops, otherwise the field is null. In Arrow they
follow `waltap.arrow.out.of.range`: `null` (the default) gives null, logs it once for each column, and
counts the values in the change log's manifests; `string` makes every column of such a type a string of
PostgreSQL text, so that nothing is lost; `error` stops. Years outside 1 to 9999 do not fit Arrow's
dates and timestamps, since Spark and Python do not read them. A numeric of more than 38 digits is
text: Spark knows no wider decimal."""


def types_page(specs: Iterable[TypeSpec]) -> str:
    """Return the page of every type that has samples.

    Types are in the order of ``specs``.
    """
    listed = tuple(specs)
    lines = ["# Types", "", GENERATED, "", *INTRODUCTION.splitlines(), ""]
    for spec in listed:
        if spec.samples:
            lines += [f"## {spec.name}", "", f"{spec.summary[0].upper()}{spec.summary[1:]}.", ""]
            rows = [HEADINGS, *_rows(spec, listed)]
            # A column without content in this family is left out.
            used = [any(row[at] for row in rows[1:]) for at in range(len(HEADINGS))]
            heads, *shown = (tuple(itertools.compress(row, used)) for row in rows)
            lines += [*table(heads, shown), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(spec: TypeSpec, specs: tuple[TypeSpec, ...]) -> Iterator[tuple[str, ...]]:
    for sample in spec.samples:
        usual = _outcome(sample, specs, TypeOptions())
        misfits = _misfits(sample, specs)
        yield (f"`{sample.declaration}`", "", *usual, misfits)
        for field, (name, values) in MODES.items():
            seen: dict[tuple[str, str, str, str], list[str]] = {}
            for value in values:
                mode = replace(
                    TypeOptions(),
                    **{field: True if value == "true" else value},  # type: ignore[arg-type]
                )
                outcome = _outcome(sample, specs, mode)
                # Most modes change few types: the page has only rows that differ.
                if outcome != usual:
                    seen.setdefault(outcome, []).append(value)
            for changed, chosen in seen.items():
                yield ("", f"{name}: {', '.join(chosen)}", *changed, "")


def _mapped(
    sample: TypeSample, specs: tuple[TypeSpec, ...], options: TypeOptions
) -> ColumnMapping | None:
    column = Column(
        name="column",
        type_oid=sample.data_type.oid,
        typmod=sample.typmod,
        data_type=sample.data_type,
        nullable=True,
    )
    return TypeRegistry(specs, options).column(column)


def _outcome(
    sample: TypeSample, specs: tuple[TypeSpec, ...], options: TypeOptions
) -> tuple[str, str, str, str]:
    mapping = _mapped(sample, specs, options)
    if mapping is None:
        return "left out", f"`{sample.text}`", "", ""
    arrow = mapping.arrow or strings()
    shown = f"`{arrow.type()}`"
    form = dict(arrow.metadata).get("waltap.form")
    return (
        f"`{schema_text(mapping.schema)}`",
        f"`{sample.text}`",
        f"`{mapping.json(sample.text)}`",
        f"{shown} ({form})" if form else shown,
    )


def _misfits(sample: TypeSample, specs: tuple[TypeSpec, ...]) -> str:
    """Return each misfit's default JSON, and whether Arrow holds it."""
    mapping = _mapped(sample, specs, TypeOptions())
    if mapping is None:
        return ""
    found = ["null while streaming, as in Debezium"] if mapping.streamed_as_null else []
    for text in sample.misfits:
        arrow = "fits Arrow" if _fits(mapping, text) else "misfit in Arrow"
        found.append(f"`{text}`: JSON `{mapping.json(text)}`, {arrow}")
    return "; ".join(found)


def _fits(mapping: ColumnMapping, text: str) -> bool:
    try:
        (mapping.arrow or strings()).column([text])
    except SinkError:
        return False
    return True


def schema_text(schema: Schema) -> str:
    """Return a schema in one line."""
    match schema.kind:
        case ConnectKind.ARRAY:
            assert schema.items is not None
            text = f"array<{schema_text(schema.items)}>"
        case ConnectKind.MAP:
            assert schema.keys is not None
            assert schema.values is not None
            text = f"map<{schema_text(schema.keys)}, {schema_text(schema.values)}>"
        case ConnectKind.STRUCT:
            members = (f"{field.name}: {schema_text(field.schema)}" for field in schema.fields)
            text = f"struct<{', '.join(members)}>"
        case kind:
            text = kind.value
    if schema.name is not None:
        text += f" {schema.name}"
    if schema.parameters:
        text += f" ({', '.join(f'{name}={value}' for name, value in schema.parameters)})"
    return text
