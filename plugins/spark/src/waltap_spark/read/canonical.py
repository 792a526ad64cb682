"""Give a value the same text in PostgreSQL and Spark.

Verification compares rows by hashes of these texts:

- floating point: its bits, because the two print it differently (1e+20 and 1.0E20)
- numeric: without trailing zeros
- timestamps: microseconds in UTC
- bytes: hexadecimal digits
- arrays: JSON

Each text is preceded by its length, so that NULL differs from every text.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from waltap_sinks.comparison import HASH_DIGITS, row_text
from waltap_sinks.comparison.common_text import ARRAYS, duration, finite
from waltap_spark.schema.expression import quoted

# SQL of PostgreSQL and SQL of Spark for the text of one column, or NULL.
Expressions = tuple[str, str]

_PLAIN: Final = frozenset({"int2", "int4", "int8", "oid", "bool", "time", "uuid"})
_DECIMAL: Final = re.compile(r"decimal\(\d+,-?\d+\)")


def expressions(name: str, pg_type: str, spark_type: str) -> Expressions | None:
    """Return both SQL expressions for a column's text."""
    source = '"' + name.replace('"', '""') + '"'
    spark = quoted(name)
    kind = json.loads(spark_type)
    if isinstance(kind, dict):
        if kind.get("type") == "array" and pg_type in ARRAYS:
            return f"array_to_json({source})::text", f"to_json({spark})"
        return None
    if kind in ("double", "float"):
        return _bits(source, spark, kind)
    if kind == "string" and pg_type == "interval":
        return finite(source, duration(source)), spark
    if kind == "string":
        return f"{source}::text", spark
    if _DECIMAL.fullmatch(kind):
        plain = f"cast({spark} as string)"
        # Spark has no trim_scale
        cut = f"regexp_replace({plain}, '(\\\\.[0-9]*?)0+$', '$1')"
        return f"trim_scale({source}::numeric)::text", f"regexp_replace({cut}, '\\\\.$', '')"
    if kind == "date":
        return finite(source, f"to_char({source}, 'YYYY-MM-DD')"), f"cast({spark} as string)"
    if kind in ("timestamp", "timestamp_ntz"):
        moment = f"{source} AT TIME ZONE 'UTC'" if pg_type == "timestamptz" else source
        text = f"to_char({moment}, 'YYYY-MM-DD HH24:MI:SS.US')"
        return finite(source, text), f"date_format({spark}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    if kind == "binary" and pg_type == "bytea":
        return f"encode({source}, 'hex')", f"lower(hex({spark}))"
    if pg_type in _PLAIN:
        return f"{source}::text", f"cast({spark} as string)"
    return None


def _bits(source: str, spark: str, kind: str) -> Expressions:
    """Return expressions for the bits of a floating point value."""
    if kind == "double":
        send, width, cast, java = "float8send", 64, "bigint", "Double', 'doubleToLongBits"
        typed = f"{source}::float8"
    else:
        send, width, cast, java = "float4send", 32, "int", "Float', 'floatToIntBits"
        typed = f"{source}::float4"
    bits = f"('x' || encode({send}({typed}), 'hex'))::bit({width})::{cast}::text"
    method = f"java_method('java.lang.{java}', {spark})"
    return bits, f"CASE WHEN {spark} IS NULL THEN NULL ELSE {method} END"


def spark_row_hash(columns: Sequence[str]) -> str:
    """Return Spark's SQL for PostgreSQL's row sum."""
    one = f"conv(substr(md5(encode({row_text(columns)}, 'UTF-8')), 1, {HASH_DIGITS}), 16, 10)"
    return f"cast(coalesce(sum(cast({one} as decimal(38,0))), 0) as string)"
