"""Conformance tests for types.

Subclass `TypeSuite` and define the fixture ``rig``:

    class TestMyType(TypeSuite):
        @pytest.fixture
        def rig(self):
            return TypeRig(MY_SPEC, DataType(oid=16400, schema="public", name="semver"),
                           values={"1.2.3": {"major": 1, "minor": 2, "patch": 3}})

The suite compares the forms of a type: JSON, the Connect value and its schema, Arrow, and an array
of the type.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import value_json
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.errors import SinkError
from waltap.ports.specs import TypeSpec
from waltap_testing.installed import installed_types
from waltap_testing.suite import RigSuite

# Types of PostgreSQL that a plugin's spec must leave to others.
STRANGERS = {"int4": 23, "text": 25, "timestamptz": 1184, "jsonb": 3802}
# Sizes of the Connect kinds, to check that a value is in range.
BITS = {ConnectKind.INT8: 8, ConnectKind.INT16: 16, ConnectKind.INT32: 32, ConnectKind.INT64: 64}
# The relative error of a float of 32 bits.
SINGLE = 1e-6


@dataclass(frozen=True, slots=True)
class TypeRig:
    """The type under test."""

    spec: TypeSpec
    # As the catalogue describes it.
    data_type: DataType
    # The server's text → its Connect value.
    values: Mapping[str, object]
    _: KW_ONLY
    # Text → Arrow's value, where it differs from the Connect value (a time, for example).
    arrow: Mapping[str, object] = field(default_factory=dict)
    # Expression of a column default, as ``pg_get_expr`` prints it → its Connect value.
    defaults: Mapping[str, object] = field(default_factory=dict)
    # Texts that are no values of the type.
    malformed: tuple[str, ...] = ()
    typmod: int = -1
    # The modes of the pipeline, such as the handling of decimals and times.
    options: TypeOptions = field(default_factory=TypeOptions)

    def registry(self) -> TypeRegistry:
        # The plugin may be installed: its own type must not be there twice.
        others = [spec for spec in installed_types() if spec.name != self.spec.name]
        return TypeRegistry([self.spec, *others], self.options)

    def column(self, data_type: DataType | None = None, **fields: Any) -> Column:
        """Return a nullable column of the type, or of ``data_type``."""
        of = data_type or self.data_type
        given = {"nullable": True, "typmod": self.typmod, **fields}
        return Column(name="c", type_oid=of.oid, data_type=of, **given)

    def build(self, **fields: Any) -> ColumnMapping:
        mapping = self.spec.build(self.column(**fields), self.registry())
        assert mapping is not None, "build leaves the column out"
        return mapping


class TypeSuite(RigSuite):
    """Rules for every type."""

    needs = "a TypeRig"

    def test_spec_is_well_formed(self, rig: TypeRig) -> None:
        """Name and summary fit pages, and there are test values."""
        assert rig.spec.name.strip()
        assert rig.spec.summary.strip()
        assert "\n" not in rig.spec.summary
        assert rig.values, "the rig has no values"

    def test_it_claims_its_type_and_no_other(self, rig: TypeRig) -> None:
        """The spec claims its type and no other.

        The first spec that claims a type maps it, so a spec that claims all types would break
        others.
        """
        assert rig.spec.claims(rig.data_type)
        for name, oid in STRANGERS.items():
            other = DataType(oid=oid, schema="pg_catalog", name=name)
            assert not rig.spec.claims(other), f"claims {name}"
        # Every column's type is asked about: an error would stop a pipeline of other types.
        for kind in TypeKind:
            if kind not in {rig.data_type.kind, TypeKind.ARRAY, TypeKind.DOMAIN}:
                other = DataType(oid=99_003, schema="public", name="of_others", kind=kind)
                assert not rig.spec.claims(other), f"claims a {kind.value} type of others"
        array = DataType(oid=1, schema="s", name="_x", kind=TypeKind.ARRAY, element=rig.data_type)
        assert not rig.spec.claims(array), "claims its arrays: leave them to the array type"
        base = DataType(oid=25, schema="pg_catalog", name="text")
        domain = DataType(oid=2, schema="public", name="d", kind=TypeKind.DOMAIN, base=base)
        assert not rig.spec.claims(domain), "claims domains over text"

    def test_samples_are_values_of_the_type(self, rig: TypeRig) -> None:
        claimed = [s for s in rig.spec.samples if rig.spec.claims(s.data_type)]
        assert claimed or not rig.spec.samples, (
            "no sample is of the type: the pages would show none"
        )
        for sample in rig.spec.samples:
            if rig.spec.claims(sample.data_type):
                rig.build(data_type=sample.data_type, typmod=sample.typmod).to_connect(sample.text)

    # --- Connect and JSON ---

    def test_values_are_what_their_texts_say(self, rig: TypeRig) -> None:
        mapping = rig.build()
        for text, value in rig.values.items():
            assert mapping.to_connect(text) == value, text

    def test_a_required_column_has_the_same_values(self, rig: TypeRig) -> None:
        """NOT NULL changes whether a field is optional, and no value."""
        nullable, required = rig.build(), rig.build(nullable=False)
        for text, value in rig.values.items():
            assert required.to_connect(text) == value, text
            assert required.json(text) == nullable.json(text), text

    def test_values_fit_the_schema(self, rig: TypeRig) -> None:
        """Values match the kind, members, items and range of the schema."""
        mapping = rig.build()
        for text in rig.values:
            _assert_fits(mapping.schema, mapping.to_connect(text), text)

    def test_json_says_what_the_connect_value_says(self, rig: TypeRig) -> None:
        """`to_json` and its inline form equal the JSON converter's output."""
        mapping = rig.build()
        for text in rig.values:
            wanted = json.loads(value_json(mapping.schema, mapping.to_connect(text)))
            assert json.loads(mapping.json(text)) == wanted, text
            inline = mapping.json_expression
            if inline is not None:
                found = eval(inline.source("v"), dict(inline.names), {"v": text})  # noqa: S307
                assert found == mapping.json(text), text

    def test_columns_are_written_as_values_are(self, rig: TypeRig) -> None:
        """`json_column` writes the same values as `to_json`.

        It may return None for a column, which is then written value by value.
        """
        column = rig.build().json_column
        if column is None:
            pytest.skip("is written value by value")
        pa, mapping = pytest.importorskip("pyarrow"), rig.build()
        texts = [*rig.values, None]
        for some in ([texts], [[text, None] for text in texts]):
            for group in some:
                found = column.convert(pa.array(group, pa.string()))
                if found is None:
                    continue
                mark = '"' if column.quoted else ""
                written = [None if t is None else f"{mark}{t}{mark}" for t in found.to_pylist()]
                assert written == [None if t is None else mapping.json(t) for t in group]
                numbers = column.numbers and column.numbers(pa.array(group, pa.string()))
                for text, number in zip(
                    group, numbers.to_pylist() if numbers else [], strict=False
                ):
                    given = None if text is None else mapping.to_connect(text)
                    if isinstance(given, bytes):
                        given = int.from_bytes(given, "big", signed=True)
                    assert text is None or given == number, text

    def test_malformed_text_is_a_value_error(self, rig: TypeRig) -> None:
        mapping = rig.build()
        for text in rig.malformed:
            for read in (mapping.to_connect, mapping.to_json or mapping.to_connect):
                outcome = _outcome(read, text)
                assert isinstance(outcome, ValueError), f"{text!r} gives {outcome!r}"

    # --- NULL, absent values, defaults ---

    def test_null_is_written_as_the_schema_allows(self, rig: TypeRig) -> None:
        """NULL is null if optional, else a valid value."""
        nullable, required = rig.build(), rig.build(nullable=False)
        assert nullable.schema.optional
        assert json.loads(nullable.null_json) is None
        stand_in = json.loads(required.null_json)
        assert required.schema.optional or stand_in is not None
        if required.fallback is not None:
            _assert_fits(required.schema, required.fallback, "the placeholder of a required field")
            assert json.loads(value_json(required.schema, required.fallback)) == stand_in

    def test_the_placeholder_fits_the_schema(self, rig: TypeRig) -> None:
        mapping = rig.build()
        shown = json.loads(mapping.unavailable_json)
        if mapping.unavailable is None:
            assert shown is None
        else:
            _assert_fits(mapping.schema, mapping.unavailable, "the placeholder")
            assert json.loads(value_json(mapping.schema, mapping.unavailable)) == shown

    def test_defaults_are_values(self, rig: TypeRig) -> None:
        """An evaluable default is valid in the schema."""
        for expression, value in rig.defaults.items():
            schema = rig.build(default=expression).schema
            assert schema.default == value, expression
            if value is not None:
                _assert_fits(schema, value, expression)

    def test_a_default_that_nobody_can_evaluate_is_none(self, rig: TypeRig) -> None:
        """An unknown default expression is ignored without an error."""
        for expression in ("gen_of_tomorrow()", "'no such value at all'::unknown", "(1 + 2)"):
            schema = rig.build(default=expression).schema
            if schema.default is not None:
                _assert_fits(schema, schema.default, expression)

    # --- Arrow ---

    def test_arrow_says_what_the_connect_value_says(self, rig: TypeRig) -> None:
        """Arrow has the Connect values, nulls, and the declared type."""
        mapping = rig.build()
        if mapping.arrow is None:
            pytest.skip("without an Arrow form columns are strings of PostgreSQL's text")
        texts = [*rig.values, None]
        array = mapping.arrow.column(texts)
        assert array.type == mapping.arrow.type()
        for text, found in zip(texts, array.to_pylist(), strict=True):
            if text is None:
                assert found is None, "NULL became a value"
                continue
            wanted = rig.arrow.get(text, rig.values[text])
            assert _same(wanted, found), f"{text}: Connect has {wanted!r}, Arrow {found!r}"

    def test_malformed_text_has_no_arrow_form(self, rig: TypeRig) -> None:
        """Malformed text raises SinkError and does not become null."""
        mapping = rig.build()
        if mapping.arrow is None:
            pytest.skip("without an Arrow form columns are strings of PostgreSQL's text")
        for text in rig.malformed:
            outcome = _outcome(mapping.arrow.column, [text])
            assert isinstance(outcome, SinkError), f"{text!r} gives {outcome!r}"

    # --- made of it ---

    def test_a_domain_over_it_is_the_same(self, rig: TypeRig) -> None:
        domain = DataType(
            oid=99_001, schema="public", name="d", kind=TypeKind.DOMAIN, base=rig.data_type
        )
        found = rig.registry().column(rig.column(domain))
        assert found is not None
        for text in rig.values:
            assert found.json(text) == rig.build().json(text)

    def test_an_array_of_it_holds_its_values(self, rig: TypeRig) -> None:
        """An array is a list of values, in JSON and Arrow."""
        array = DataType(
            oid=99_002,
            schema=rig.data_type.schema,
            name=f"_{rig.data_type.name}",
            kind=TypeKind.ARRAY,
            element=rig.data_type,
        )
        found = rig.registry().column(rig.column(array))
        if found is None:
            pytest.skip("no installed type maps its arrays (waltap-postgres does)")
        one = rig.build()
        text = "{" + ",".join(f'"{_escaped(each)}"' for each in rig.values) + "}"
        wanted = [json.loads(one.json(each)) for each in rig.values]
        assert json.loads(found.json(text)) == wanted
        assert found.to_connect(text) == [one.to_connect(each) for each in rig.values]
        if found.arrow is not None and one.arrow is not None:
            (items,) = found.arrow.column([text]).to_pylist()
            assert items == one.arrow.column(list(rig.values)).to_pylist()


def _outcome(read: Callable[[Any], object], given: object) -> object:
    try:
        return read(given)
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return error


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _assert_fits(schema: Schema, value: object, at: str) -> None:
    wrong = f"{at}: {value!r} is no {schema.kind.value}"
    if value is None:
        assert schema.optional or schema.name is not None, wrong
        return
    match schema.kind:
        case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
            # `isinstance` would accept a bool.
            assert type(value) is int, wrong
            limit = 1 << (BITS[schema.kind] - 1)
            assert -limit <= value < limit, wrong
        case ConnectKind.FLOAT32 | ConnectKind.FLOAT64:
            assert type(value) is float, wrong
        case ConnectKind.BOOLEAN:
            assert type(value) is bool, wrong
        case ConnectKind.STRING:
            assert type(value) is str, wrong
        case ConnectKind.BYTES:
            assert type(value) is bytes, wrong
        case ConnectKind.ARRAY:
            assert isinstance(value, list), wrong
            assert schema.items is not None, f"{at}: the schema says nothing of its items"
            for item in value:
                _assert_fits(schema.items, item, at)
        case ConnectKind.MAP:
            assert isinstance(value, Mapping), wrong
            assert schema.keys is not None, f"{at}: the schema says nothing of its keys"
            assert schema.values is not None, f"{at}: the schema says nothing of its values"
            for key, each in value.items():
                _assert_fits(schema.keys, key, at)
                _assert_fits(schema.values, each, at)
        case ConnectKind.STRUCT:
            assert isinstance(value, Mapping), wrong
            names = {member.name for member in schema.fields}
            assert set(value) <= names, f"{at}: {sorted(set(value) - names)} not in the schema"
            for member in schema.fields:
                _assert_fits(member.schema, value.get(member.name), f"{at}, {member.name}")


def _same(wanted: object, found: object) -> bool:
    """Return whether a Connect and an Arrow value are equal.

    In Arrow a map is a list of pairs, a float may have 32 bits, and a struct may have fewer
    members.
    """
    if isinstance(wanted, Mapping):
        if isinstance(found, list):
            found = dict(found)
        if not isinstance(found, Mapping) or not found.keys() <= wanted.keys():
            return False
        return bool(found or not wanted) and all(_same(wanted[key], found[key]) for key in found)
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(map(_same, wanted, found))
        )
    if isinstance(wanted, float) and isinstance(found, float):
        both_nan = math.isnan(wanted) and math.isnan(found)
        return both_nan or math.isclose(wanted, found, rel_tol=SINGLE)
    if isinstance(found, Decimal) and isinstance(wanted, str | int):
        return found == Decimal(wanted)
    if isinstance(found, str) and isinstance(wanted, bytes):
        return found == base64.b64encode(wanted).decode()
    return type(wanted) is type(found) and wanted == found
