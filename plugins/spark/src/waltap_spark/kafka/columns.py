"""Turn event values into Spark's types, and find unsent ones."""

import base64
import json
from hashlib import md5
from typing import Any, Final
from uuid import UUID

from pyspark.sql import SparkSession

from waltap_spark.kafka.connect_schema import DECIMAL, TopicField
from waltap_spark.schema.expression import literal_of, quoted

# The field in which Spark's JSON reader stores an unreadable row.
CORRUPT: Final = "__waltap_corrupt"

_RAW: Final = {
    "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
    "float": "float", "double": "double", "boolean": "boolean", "string": "string",
}  # fmt: skip

_TIMES: Final = {
    "io.debezium.time.Time": 1_000,
    "org.apache.kafka.connect.data.Time": 1_000,
    "io.debezium.time.MicroTime": 1_000_000,
    "io.debezium.time.NanoTime": 1_000_000_000,
}
_MOMENTS: Final = {
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1_000_000,
    "io.debezium.time.NanoTimestamp": 1_000_000_000,
}
_DATES: Final = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_ZONED: Final = "io.debezium.time.ZonedTimestamp"
_VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
_UUID: Final = "io.debezium.data.Uuid"
_INTEGERS: Final = ("int16", "int32", "int64")
_WORD: Final = 1 << 64
_MOST_DIGITS: Final = 38
# Digits of a number that a double keeps exactly.
_SURE_DIGITS: Final = 15
_DAY_S: Final = 86_400
# Seconds of the years 1 to 9999, the range of dates in a database's own change log.
_FIRST_S, _END_S = -62_135_596_800, 253_402_300_800
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
_FAR: Final = r"infinity|^[+-]?\\d{5,}-|^-|^0000-| BC$"
_DIGITS: Final = "waltap_digits"


def learn_functions(spark: SparkSession) -> None:
    """Register the function that reads numbers of any length."""

    def digits(number: bytes | None, scale: int | None) -> str | None:
        """Return the text of a two's complement ``number``."""
        from decimal import Context, Decimal

        if number is None or scale is None:
            return None
        unscaled = int.from_bytes(number, "big", signed=True)
        exact = Context(prec=max(1, len(str(abs(unscaled)))))
        return format(Decimal(unscaled).scaleb(-scale, exact), "f")

    spark.udf.register(_DIGITS, digits, "string")


def raw_struct(fields: tuple[TopicField, ...]) -> str:
    """Return the DDL that reads a row's JSON without interpreting values."""
    columns = ", ".join(f"{quoted(each.name)} {_raw(each)}" for each in fields)
    return f"{columns}, {CORRUPT} string" if columns else f"{CORRUPT} string"


def _raw(field: TopicField) -> str:
    if field.kind == "array" and field.items:
        return f"array<{_raw(field.items)}>"
    if field.kind == "map" and field.items:
        if _has_pairs(field):
            return "array<array<string>>"
        return f"map<string, {'string' if _is_variant(field.items) else _raw(field.items)}>"
    if field.kind == "struct":
        inner = ", ".join(f"{quoted(each.name)}: {_raw(each)}" for each in field.fields)
        return f"struct<{inner}>"
    if _is_variant(field):
        return "variant"
    return _RAW.get(field.kind, "string")  # bytes are base64 in JSON


def _has_pairs(field: TopicField) -> bool:
    """Return whether JSON has a map as an array of pairs."""
    return field.keys is not None and field.keys.kind != "string"


def _is_variant(field: TopicField) -> bool:
    """Return whether digits in JSON may be a number or base64.

    With a scale above 0 a number has a point, so it is distinguishable.
    """
    return field.meaning == DECIMAL and int(field.parameters.get("scale", "0")) <= 0


def is_there(field: TopicField, column: str, *, avro: bool) -> str:
    """Return SQL of whether a raw value is not null."""
    if not avro and _is_variant(field):
        return f"({column} is not null and not is_variant_null({column}))"
    return f"{column} is not null"


def typed_column(field: TopicField, column: str, *, avro: bool, inside: bool = False) -> str:
    """Return SQL that converts a raw value, null on failure.

    Avro has plain bytes (`without_decimals`), JSON base64. ``inside`` an array Spark cannot call a
    Python function, so numbers have up to 38 digits there.
    """
    meaning = field.meaning
    if meaning in _DATES:
        value = column if avro and meaning == _DATES[1] else f"date_from_unix_date({column})"
        return _near_day(value)
    if meaning in _TIMES:
        return _time(column, _TIMES[meaning])
    if meaning in _MOMENTS:
        if avro and meaning.startswith("org."):
            return f"cast({column} as timestamp_ntz)"  # Avro's own logical type
        return f"cast({_moment(column, _MOMENTS[meaning])} as timestamp_ntz)"
    if meaning == _ZONED:
        return _near_moment(f"try_cast({column} as timestamp)", "timestamp")
    if meaning == DECIMAL:
        return _decimal(field, column, avro=avro, inside=inside)
    if meaning == _VARIABLE:
        number = f"{column}.value" if avro else f"try_to_binary({column}.value, 'base64')"
        return _number_text(number, f"{column}.scale", inside=inside)
    if field.kind == "bytes":
        return column if avro else f"try_to_binary({column}, 'base64')"
    if field.kind == "array" and field.items:
        inner = typed_column(field.items, "e", avro=avro, inside=True)
        return column if inner == "e" else f"transform({column}, e -> {inner})"
    if field.kind == "map" and not avro and _has_pairs(field):
        return _map_of_pairs(field, column)
    if field.kind == "struct":
        parts = ", ".join(
            f"{literal_of(each.name)}, "
            + typed_column(each, f"{column}.{quoted(each.name)}", avro=avro, inside=inside)
            for each in field.fields
        )
        return f"if({column} is null, null, named_struct({parts}))"
    narrow = {"int8": "tinyint", "int16": "smallint"}.get(field.kind)
    return f"try_cast({column} as {narrow})" if narrow and avro else column


def _map_of_pairs(field: TopicField, column: str) -> str:
    assert field.keys is not None
    assert field.items is not None
    kinds = (_RAW.get(each.kind, "string") for each in (field.keys, field.items))
    key, value = (f"try_cast(get(e, {at}) as {kind})" for at, kind in enumerate(kinds))
    entries = f"transform({column}, e -> named_struct('key', {key}, 'value', {value}))"
    return f"if(exists({column}, e -> {key} is null), null, map_from_entries({entries}))"


def _decimal(field: TopicField, column: str, *, avro: bool, inside: bool) -> str:
    scale = int(field.parameters.get("scale", "0"))
    precision = int(field.parameters.get("connect.decimal.precision", _MOST_DIGITS))
    fits = 0 <= scale <= precision <= _MOST_DIGITS
    exact = f"decimal({precision if fits else _MOST_DIGITS},{scale})"
    if avro:
        text, number = column, column
    else:
        text = _text_in(column) if _is_variant(field) else column
        number = f"try_to_binary({text}, 'base64')"
    if fits:
        made = f"try_cast({_unscaled(number)} || 'E-{scale}' as {exact})"
    else:
        made = _number_text(number, str(scale), inside=inside)
    if avro:
        return made
    if _is_variant(field):  # a number of more digits than variants have is a double
        kind = f"schema_of_variant({column})"
        plain = f"try_cast({text} as {exact})" if fits else f"if({kind} = 'DOUBLE', null, {text})"
        return f"if({kind} = 'STRING', {made}, {plain})"
    # Spark reads such a token as a double, so only numbers that a double keeps are certain.
    plain = f"try_cast({text} as {exact})" if scale <= _MOST_DIGITS else "null"
    plain = f"if(abs(try_cast({text} as double)) < 1E{_SURE_DIGITS - scale}D, {plain}, null)"
    plain = plain if fits else f"cast({plain} as string)"
    return f"if(contains({column}, '.'), {plain}, {made})"


def _number_text(number: str, scale: str, *, inside: bool) -> str:
    """Return SQL of the text of a two's complement number."""
    if not inside:
        return f"{_DIGITS}({number}, {scale})"
    digits = _unscaled(number)
    bare = f"regexp_replace({digits}, '^-', '')"
    padded = f"lpad({bare}, greatest(length({bare}), {scale} + 1), '0')"
    sign = f"if({digits} like '-%', '-', '')"
    integer_part = f"substr({padded}, 1, length({padded}) - {scale})"
    parted = f"{sign} || {integer_part} || '.' || right({padded}, {scale})"
    return f"if({scale} <= 0, {digits} || repeat('0', -{scale}), {parted})"


def _moment(column: str, per_second: int) -> str:
    number = f"cast({column} as bigint)"
    micros = (
        f"{number} * {1_000_000 // per_second}"
        if per_second < 1_000_000
        else f"{number} div {per_second // 1_000_000}"
    )
    first, end = _FIRST_S * per_second, _END_S * per_second
    if per_second > 1_000_000:
        first, end = -(1 << 63) + 1, (1 << 63) - 1
    return f"if({number} >= {first} and {number} < {end}, timestamp_micros({micros}), null)"


def _near_day(day: str) -> str:
    return f"if(year({day}) between 1 and 9999, {day}, null)"


def _near_moment(moment: str, kind: str) -> str:
    zone = "Z" if kind == "timestamp" else ""
    first, last = f"{kind}'{_FIRST}{zone}'", f"{kind}'{_LAST}{zone}'"
    return f"if({moment} between {first} and {last}, {moment}, null)"


def _time(column: str, per_second: int) -> str:
    seconds = f"({column} div {per_second})"
    micros = f"cast(({column} % {per_second}) * {1_000_000 // min(per_second, 1_000_000)}"
    micros += f" div {max(per_second // 1_000_000, 1)} as decimal(16,6))"
    fraction = f"cast({seconds} % 60 + {micros} / 1000000 as decimal(16,6))"
    clock = f"cast({seconds} div 3600 as int), cast({seconds} div 60 % 60 as int)"
    made = f"make_time({clock}, {fraction})"
    return f"if({column} >= 0 and {column} < {_DAY_S * per_second}, {made}, null)"


def _unscaled(value: str) -> str:
    """Return SQL of at most 38 digits of a number."""
    # Sign extension to 16 bytes: a leading hexadecimal digit of 8 or more is negative.
    full = f"lpad(hex({value}), 32, if(substr(hex({value}), 1, 1) >= '8', 'F', '0'))"
    high = f"cast(conv(substr({full}, 1, 16), 16, -10) as decimal(38,0))"
    low = f"cast(conv(substr({full}, 17, 16), 16, 10) as decimal(20,0))"
    number = f"try_add(try_cast({high} * {_WORD} as decimal(38,0)), {low})"
    return f"if(length({value}) > 16, null, cast({number} as string))"


def declared_field(name: str, kind: str) -> TopicField:
    """Return the field of a declared column.

    Values are read as text, decimals as variants, which keep the digits of a number.
    """
    if kind.startswith("decimal("):
        return TopicField(name, "bytes", DECIMAL)
    return TopicField(name, "string")


def declared_column(kind: str, column: str) -> str:
    """Return SQL that converts JSON to a declared type, or null.

    Dates are days and times microseconds if they are numbers.
    """
    number = f"try_cast({column} as bigint)"
    if kind == "date":
        day = f"date_from_unix_date(try_cast({number} as int))"
        return _near_day(f"coalesce({day}, try_cast({column} as date))")
    if kind in ("timestamp", "timestamp_ntz"):
        moment = f"cast({_moment(number, 1_000_000)} as {kind})"
        text = _near_moment(f"try_cast({column} as {kind})", kind)
        return f"if({number} is null, {text}, {moment})"
    if kind.startswith("time("):
        return f"if({number} is null, try_cast({column} as time), {_time(number, 1_000_000)})"
    if kind == "binary":
        return f"try_to_binary({column}, 'base64')"
    if kind.startswith(("array<", "map<", "struct<")):
        return f"from_json({column}, {literal_of(kind)})"
    if kind.startswith("decimal("):
        return _declared_decimal(kind, column)
    return column if kind == "string" else f"try_cast({column} as {kind})"


def _declared_decimal(kind: str, column: str) -> str:
    """Return SQL of a number from a text or variant.

    A number with a point went through a double, and its variant has 17 digits at most. Texts and
    integers have all digits.
    """
    text, found = _text_in(column), f"schema_of_variant({column})"
    scale = int(kind.partition(",")[2].rstrip(")"))
    size = f"abs(try_cast({text} as double))"
    pointed = f"({found} = 'DOUBLE' or {found} like 'DECIMAL%' and {size} < 1E18D)"
    unsure = f"{pointed} and {size} >= 1E{_SURE_DIGITS - scale}D"
    return f"if({unsure}, null, try_cast({text} as {kind}))"


def _text_in(variant: str) -> str:
    return f"try_variant_get({variant}, '$', 'string')"


def out_of_range(field: TopicField, kind: str | None, column: str) -> str:
    """Return SQL of whether Spark has no type for a value.

    Such values are infinite or far dates and times, and 24:00. ``kind`` is the declared type, if any.
    """
    if kind is not None:
        number = f"try_cast({column} as bigint) is not null"
        return (
            f"({number} or {_far(column, kind)})" if kind.startswith(("date", "time")) else "false"
        )
    if field.meaning == _ZONED:
        return _far(column, "timestamp")
    return "true" if field.meaning in (*_DATES, *_TIMES, *_MOMENTS) else "false"


def _far(column: str, kind: str) -> str:
    return f"({column} rlike '{_FAR}' or try_cast({column} as {kind}) is not null)"


def unreadable_elements(field: TopicField, column: str, *, avro: bool) -> tuple[str, str] | None:
    """Return SQL of two tests of an array's elements.

    Whether one became null since it is unreadable, and whether one did since no type of Spark holds it.
    """
    if field.kind == "array" and field.items is not None:
        inner = typed_column(field.items, "e", avro=avro, inside=True)
        if inner == "e":
            return None
        missed = f"{is_there(field.items, 'e', avro=avro)} and {inner} is null"
        far = out_of_range(field.items, None, "e")
        found = (f"exists({column}, e -> {missed} and {each})" for each in (f"not {far}", far))
        bad, lost = (f"coalesce({each}, false)" for each in found)
        return bad, lost
    return None


def was_not_sent(
    field: TopicField, kind: str | None, column: str, placeholder: str, *, avro: bool
) -> str | None:
    """Return SQL of whether a raw value is the placeholder.

    None for types that are never stored out of line. ``kind`` is the declared type, if any.
    """
    if kind is not None:
        column = _text_in(column) if _is_variant(field) else column
        listed = ", ".join(map(literal_of, _texts_of_unsent(kind, placeholder)))
        return f"coalesce({column} in ({listed}), false)"
    text = literal_of(placeholder)
    if field.kind == "string":  # hstore as JSON is an object of it
        return f"coalesce({column} in ({text}, {literal_of(_object_of(placeholder))}), false)"
    if field.kind == "bytes" and field.meaning != DECIMAL:
        if avro:
            return f"{column} <=> cast({text} as binary)"
        return f"{column} <=> {literal_of(_base64_of(placeholder))}"
    if field.kind == "map":
        return f"map_keys({column}) <=> array({text})"
    if field.kind == "array" and field.items is not None:
        if field.items.kind == "string":
            if field.items.meaning == _UUID:
                return f"{column} <=> array('{_uuid_of(placeholder)}')"
            return f"{column} <=> array({text})"
        # Debezium writes the placeholder's bytes as the numbers of an integer array.
        if field.items.kind in _INTEGERS:
            listed = ", ".join(map(str, _signed_bytes(placeholder)))
            return f"{column} <=> cast(array({listed}) as array<{_RAW[field.items.kind]}>)"
        if field.items.kind == "bytes" and not field.items.meaning:
            inner = was_not_sent(field.items, None, "e", placeholder, avro=avro)
            return f"coalesce(size({column}) = 1 and exists({column}, e -> {inner}), false)"
    return None


def _texts_of_unsent(kind: str, placeholder: str) -> list[str]:
    """Return the placeholder's JSON texts for a declared type."""
    texts = [placeholder, _object_of(placeholder)]  # hstore as JSON is an object of it
    if kind == "binary":
        texts.append(_base64_of(placeholder))
    if kind.startswith("array<"):
        lists: list[list[Any]] = [
            [placeholder], [_base64_of(placeholder)], _signed_bytes(placeholder), [_uuid_of(placeholder)]
        ]  # fmt: skip
        texts += map(_compact, lists)
    return texts


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _object_of(placeholder: str) -> str:
    return _compact({placeholder: placeholder})


def _base64_of(placeholder: str) -> str:
    return base64.b64encode(placeholder.encode()).decode()


def _signed_bytes(placeholder: str) -> list[int]:
    return [(byte + 128) % 256 - 128 for byte in placeholder.encode()]


def _uuid_of(placeholder: str) -> str:
    digest = md5(placeholder.encode(), usedforsecurity=False).digest()
    return str(UUID(bytes=digest, version=3))
