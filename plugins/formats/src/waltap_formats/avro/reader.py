"""Reading of Avro values by the schema of their writer.

The results are plain documents. Source: Avro 1.11.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from waltap_formats.wire import WireReader, WireUnreadable

__all__ = ["avro_reader"]

Read = Callable[[WireReader], Any]


def avro_reader(schema: Any, known: Mapping[str, Any] | None = None) -> Callable[[bytes], Any]:
    """Return the reader of values of ``schema``.

    ``schema`` is parsed JSON. ``known`` maps full names to schemas that it refers to. Decimals
    become Decimal; other logical types remain numbers. Compiling and reading raise WireUnreadable.
    """
    read = _ReaderCompiler(known or {}).reader(schema, "")

    def whole(data: bytes) -> Any:
        wire = WireReader(data)
        value = read(wire)
        # Bytes after the value show that another schema wrote it.
        if wire.left:
            raise WireUnreadable(f"{wire.left} bytes follow the value")
        return value

    return whole


class _ReaderCompiler:
    """Compile readers.

    Named types are known after their definition.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._named: dict[str, Read] = {}

    def reader(self, schema: Any, space: str) -> Read:
        if isinstance(schema, list):
            return _union([self.reader(each, space) for each in schema])
        if isinstance(schema, str):
            return PRIMITIVES[schema] if schema in PRIMITIVES else self._by_name(schema, space)
        if not isinstance(schema, dict):
            raise WireUnreadable("the schema is no Avro")
        kind = schema.get("type")
        match kind:
            case "record" | "error" | "enum" | "fixed":
                return self._defined(schema, space)
            case "array":
                return _blocks(self.reader(schema.get("items"), space), list)
            case "map":
                return _blocks(_entry(self.reader(schema.get("values"), space)), dict)
            case "bytes" if schema.get("logicalType") == "decimal":
                return _decimal(PRIMITIVES["bytes"], schema)
            case _:
                return self.reader(kind, space)

    def _by_name(self, name: str, space: str) -> Read:
        full = name if "." in name or not space else f"{space}.{name}"
        for each in (full, name):
            if each in self._named:
                # A type may contain itself, so it is looked up when a value is read.
                return self._later(each)
            if each in self._known:
                return self.reader(self._known[each], "")
        raise WireUnreadable(f"the schema has no type {name}")

    def _later(self, name: str) -> Read:
        def read(wire: WireReader) -> Any:
            return self._named[name](wire)

        return read

    def _defined(self, schema: Mapping[str, Any], space: str) -> Read:
        name = str(schema.get("name", ""))
        # A dot in the name overrides the namespace.
        space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space))
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = PRIMITIVES["null"]  # its own fields may name it
        made = self._named[full] = self._body(schema, space)
        return made

    def _body(self, schema: Mapping[str, Any], space: str) -> Read:
        if schema["type"] == "enum":
            return _enum([str(symbol) for symbol in schema.get("symbols", ())])
        if schema["type"] == "fixed":
            size = int(schema["size"])
            fixed: Read = lambda wire: wire.take(size)  # noqa: E731 - one of two
            return _decimal(fixed, schema) if schema.get("logicalType") == "decimal" else fixed
        fields = [
            (str(field["name"]), self.reader(field["type"], space)) for field in schema["fields"]
        ]
        return lambda wire: {name: read(wire) for name, read in fields}


def _union(branches: list[Read]) -> Read:
    def read(wire: WireReader) -> Any:
        place = wire.zigzag()
        if not 0 <= place < len(branches):
            raise WireUnreadable(f"a union has no branch {place}")
        return branches[place](wire)

    return read


def _enum(symbols: list[str]) -> Read:
    def read(wire: WireReader) -> str:
        place = wire.zigzag()
        if not 0 <= place < len(symbols):
            raise WireUnreadable(f"an enum has no symbol {place}")
        return symbols[place]

    return read


def _entry(read: Read) -> Read:
    return lambda wire: (wire.text(wire.zigzag()), read(wire))


def _blocks(item: Read, gathered: Callable[[list[Any]], Any]) -> Read:
    def read(wire: WireReader) -> Any:
        items: list[Any] = []
        while count := wire.zigzag():
            # A negative count announces that the block's size follows.
            if count < 0:
                count = -count
                wire.zigzag()  # the block's size, for readers that skip it
            # Items may have no bytes, so a damaged count could otherwise fill the memory.
            wire.claim(count)
            items += [item(wire) for _ in range(count)]
        return gathered(items)

    return read


def _decimal(read: Read, schema: Mapping[str, Any]) -> Read:
    # A decimal is its unscaled number, big-endian in two's complement.
    scale = int(schema.get("scale", 0))

    def decimal(wire: WireReader) -> Decimal:
        return scaled(int.from_bytes(read(wire), "big", signed=True), scale)

    return decimal


def scaled(unscaled: int, scale: int) -> Decimal:
    """Return ``unscaled`` · 10^-``scale``, exactly.

    Raises: WireUnreadable.
    """
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    # A damaged scale would make a text of that many digits.
    if abs(scale) > 100_000:
        raise WireUnreadable(f"a scale of {scale}")
    return Decimal((int(unscaled < 0), digits, -scale))


def _boolean(wire: WireReader) -> bool:
    return wire.take(1) != b"\x00"


PRIMITIVES: Final[dict[str, Read]] = {
    "null": lambda _wire: None,
    "boolean": _boolean,
    "int": WireReader.zigzag,
    "long": WireReader.zigzag,
    "float": lambda wire: wire.number("f"),
    "double": lambda wire: wire.number("d"),
    "bytes": lambda wire: wire.take(wire.zigzag()),
    "string": lambda wire: wire.text(wire.zigzag()),
}
