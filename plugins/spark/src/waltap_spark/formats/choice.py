"""Choose an output's table format among the plugins."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from waltap_spark.errors import FormatDiffers, FormatUnknown
from waltap_spark.state.output import OutputState

if TYPE_CHECKING:
    from waltap.ports.specs import TableFormatSpec
    from waltap_spark.formats.table_format import TableFormat, TableFormatContext

    Factory = Callable[[TableFormatContext], TableFormat]


PARQUET: Final = "parquet"
# The prefix of a format's properties in a profile.
PREFIX: Final = "format."


class FormatChoice:
    """A format by name, with the profile's properties of it."""

    def __init__(self, name: str = PARQUET, values: Mapping[str, str] | None = None) -> None:
        self.name, self.values = name, dict(values or {})

    @property
    def factory(self) -> "Factory":
        """Return the format's factory. Raises: FormatUnknown, ConfigurationError."""
        # The default needs no plugin host, whose start loads every distribution.
        if self.name == PARQUET and not self.values:
            from waltap_spark.formats.parquet import ParquetFormat

            return ParquetFormat
        spec = self._spec()
        properties = self._properties(spec)

        def made(context: "TableFormatContext") -> "TableFormat":
            from waltap_spark.formats.table_format import TableFormat

            found = spec.factory(properties, context)
            if not isinstance(found, TableFormat):
                text = (
                    f"the table format {spec.name} is a {type(found).__name__}, not a TableFormat"
                )
                raise FormatUnknown(text, known="what subclasses waltap_spark.formats.TableFormat")
            return found

        return made

    def settings(self, pyspark: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Add the format's settings to the ``settings`` of a new session.

        Raises: FormatUnknown, ConfigurationError, FormatNotReady, FormatUnsupported.
        """
        if self.name == PARQUET and not self.values:
            return dict(settings)
        spec = self._spec()
        self._properties(spec)
        more = {} if spec.session is None else spec.session(pyspark, settings)
        return {**settings, **more}

    def require_format_of(self, state: OutputState | None, location: str) -> None:
        """Check the format of the tables at ``location``. Raises: FormatDiffers."""
        if state is not None and state.number and state.format != self.name:
            text = f"{location} has tables in {state.format}, not in {self.name}"
            raise FormatDiffers(text, format=state.format)

    def _spec(self) -> "TableFormatSpec":
        from waltap.plugins.host import Host

        found = Host().table_formats
        if self.name not in found:
            raise FormatUnknown(
                f"there is no table format called {self.name}", known=", ".join(sorted(found))
            )
        return found[self.name]

    def _properties(self, spec: "TableFormatSpec") -> object:
        from pydantic import ValidationError

        from waltap.base.property import Properties
        from waltap.errors import ConfigurationError, PropertyProblem

        own = {name.removeprefix(PREFIX): value for name, value in self.values.items()}
        try:
            return (spec.properties or Properties).model_validate(own)
        except ValidationError as cause:
            problems = []
            for each in cause.errors(include_input=False, include_url=False):
                text = each["msg"].removeprefix("Value error, ")
                if each["type"] == "extra_forbidden":
                    text = f"says nothing to the format {spec.name}"
                name = PREFIX + ".".join(map(str, each["loc"]))
                problems.append(PropertyProblem(name.rstrip("."), text))
            raise ConfigurationError(problems, origin=f"the format {spec.name}") from cause


def choice_of(state: OutputState | None) -> FormatChoice:
    """Return the format of an output by its last commit."""
    return FormatChoice() if state is None else FormatChoice(state.format, state.format_values)
