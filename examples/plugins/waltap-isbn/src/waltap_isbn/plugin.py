"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import ColumnConverterSpec
from waltap_isbn.converter import IsbnProperties, new_converter

WALTAP_API = 1


@hookimpl
def register_converters() -> Iterable[ColumnConverterSpec]:
    """Contribute the converter: ``[[converters]] type = "isbn"`` in a profile."""
    yield ColumnConverterSpec(
        name="isbn",
        summary="Writes book numbers as structs of their parts.",
        properties=IsbnProperties,
        factory=new_converter,
    )
