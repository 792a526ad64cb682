"""The types of pgvector: ``vector``, ``halfvec``, ``sparsevec``."""

from collections.abc import Callable

from waltap.base.import_rules import pa
from waltap.changes.mapping import (
    Column,
    ColumnMapping,
    ConnectKind,
    Field,
    OutOfRange,
    Schema,
    TypeMapper,
    TypeSample,
    TypeSpec,
    ValueForm,
    column_mapping,
    converted,
    float_text,
    number_json,
    single,
    types_named,
)

BuildColumn = Callable[[Column, TypeMapper], ColumnMapping]


def _items(text: str) -> list[str]:
    """Return the texts of the numbers of ``[1,2,3]``."""
    if text[:1] != "[" or text[-1:] != "]":
        raise ValueError("malformed vector")
    inner = text[1:-1]
    # ``"".split(",")`` would give one empty number.
    return inner.split(",") if inner else []


def _numbers(text: str) -> list[float]:
    return [float(item) for item in _items(text)]


def _half_connect(text: str) -> list[float]:
    # Debezium's FloatVector has numbers of 32 bits.
    return [single(item) for item in _items(text)]


def _sparse(text: str) -> tuple[int, dict[int, float]]:
    """Return dimensions and the numbers that are not zero of ``{1:1.5,3:2}/5``."""
    body, slash, dimensions = text.rpartition("/")
    if not slash or body[:1] != "{" or body[-1:] != "}":
        raise ValueError("malformed sparse vector")
    pairs = {}
    for item in body[1:-1].split(","):
        index, colon, number = item.partition(":")
        # ``{}/5`` has no pair, but one empty item.
        if colon:
            pairs[int(index)] = float(number)
    return int(dimensions), pairs


def _sparse_type() -> "pa.DataType":
    return pa.struct([("dimensions", pa.int32()), ("vector", pa.map_(pa.int32(), pa.float32()))])


def _sparse_struct(text: str) -> dict[str, object]:
    dimensions, pairs = _sparse(text)
    return {"dimensions": dimensions, "vector": list(pairs.items())}


_VECTOR = ValueForm(
    schema=Schema(
        kind=ConnectKind.ARRAY,
        name="io.debezium.data.DoubleVector",
        version=1,
        items=Schema(kind=ConnectKind.FLOAT64),
    ),
    to_json=lambda text: f"[{','.join(number_json(n, single=False) for n in _numbers(text))}]",
    to_connect=_numbers,
    zero=[],
    arrow=converted("vector", lambda: pa.list_(pa.float32()), _numbers),
)
_HALFVEC = ValueForm(
    schema=Schema(
        kind=ConnectKind.ARRAY,
        name="io.debezium.data.FloatVector",
        version=1,
        items=Schema(kind=ConnectKind.FLOAT32),
    ),
    to_json=lambda text: f"[{','.join(map(float_text, _half_connect(text)))}]",
    to_connect=_half_connect,
    zero=[],
    arrow=converted("halfvec", lambda: pa.list_(pa.float32()), _numbers),
)
_SPARSE_SCHEMA = Schema(
    kind=ConnectKind.STRUCT,
    name="io.debezium.data.SparseDoubleVector",
    version=1,
    doc="Sparse double vector",
    fields=(
        # The widths are Debezium's.
        Field("dimensions", Schema(kind=ConnectKind.INT16)),
        Field(
            "vector",
            Schema(
                kind=ConnectKind.MAP,
                keys=Schema(kind=ConnectKind.INT16),
                values=Schema(kind=ConnectKind.FLOAT64),
            ),
        ),
    ),
)
_MOST_DIMENSIONS = 2**15 - 1
_TOO_WIDE = f"sparsevec of more than {_MOST_DIMENSIONS} dimensions"


def _build_sparse(column: Column, mapper: TypeMapper) -> ColumnMapping:
    misfit = OutOfRange(column.name, mapper.options)

    def to_json(text: str) -> str:
        dimensions, pairs = _sparse(text)
        if dimensions > _MOST_DIMENSIONS:
            return misfit.json(_TOO_WIDE)
        # JSON has no keys that are numbers, so Kafka Connect writes such a map as pairs.
        shown = ",".join(f"[{k},{number_json(v, single=False)}]" for k, v in pairs.items())
        return f'{{"dimensions":{dimensions},"vector":[{shown}]}}'

    def to_connect(text: str) -> object:
        dimensions, pairs = _sparse(text)
        if dimensions > _MOST_DIMENSIONS:
            return misfit.connect(_TOO_WIDE)
        return {"dimensions": dimensions, "vector": pairs}

    form = ValueForm(
        schema=_SPARSE_SCHEMA,
        to_json=to_json,
        to_connect=to_connect,
        zero={"dimensions": 0, "vector": {}},
        arrow=converted("sparsevec", _sparse_type, _sparse_struct),
    )
    return column_mapping(column, mapper.options, form, misfit)


def _of(form: ValueForm) -> BuildColumn:
    return lambda column, mapper: column_mapping(column, mapper.options, form)


def _spec(name: str, summary: str, build: BuildColumn, sample: str) -> TypeSpec:
    return TypeSpec(
        name=name,
        summary=summary,
        claims=types_named(name),
        build=build,
        order=100,
        examples=(name,),
        samples=(TypeSample.of_extension(name, sample),),
    )


PGVECTOR_SPECS = (
    _spec("vector", "dense vectors of pgvector", _of(_VECTOR), "[1,2.5]"),
    _spec("halfvec", "dense half-precision vectors of pgvector", _of(_HALFVEC), "[1,2.5]"),
    _spec("sparsevec", "sparse vectors of pgvector", _build_sparse, "{1:1.5,3:2}/5"),
)
