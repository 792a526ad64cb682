"""Check before a start that tables fit the profile's modes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.relation import Relation
from waltap.errors import WaltapError
from waltap.plugins.check_context import CheckContext
from waltap.ports.source.connector import PreflightCheck
from waltap.ports.source.roles import planned
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.properties import SparkProperties
from waltap_spark.config.targets import FileLayout
from waltap_spark.driver.settings import apply_options
from waltap_spark.errors import LayoutUnfit
from waltap_spark.state.modes import mode_errors
from waltap_spark.state.output import TableState

NAME: Final = "spark tables"

# Modes that fit every table.
FIT_ALL: Final = frozenset(("append", "scd1", "hard", "keep"))


def check_modes(
    context: CheckContext, properties: Sequence[SparkProperties]
) -> list[PreflightCheck]:
    """Warn of each table that its first change would suspend."""
    profile = context.profile
    mine = [(each, apply_options(each), _made(each)) for each in properties]
    if not any(_may_be_wrong(*each) for each in mine):
        return []
    try:
        relations = [each.relation for each in planned(context.connector, context.offset).tables]
    except WaltapError:
        return []  # the connector's own check reports the error
    found: dict[str, WaltapError] = {}
    called = CaptureRules(profile.capture).field_name
    for each in mine:
        for relation in relations:
            for error in _wrong(*each, relation, called):
                found.setdefault(relation.name, error)
    return [PreflightCheck.warning(NAME, error.problem, error.advice()) for error in found.values()]


def _may_be_wrong(
    properties: SparkProperties, options: ApplyOptions, made: Mapping[str, TableState]
) -> bool:
    """Return whether a table might not fit its mode.

    The answer avoids asking the server for its tables, which may be thousands.
    """
    by = options.modes
    mentioned = {*by.modes, *by.deletes, *by.history, *by.extra} - FIT_ALL
    renewed = (by.of(each.target_name) != each.mode for each in made.values())
    return bool(mentioned or properties.format_properties) or any(renewed)


def _made(properties: SparkProperties) -> Mapping[str, TableState]:
    try:
        state = properties.output().state()
    except WaltapError:
        return {}  # the writer that opens the output reports the error
    return {} if state is None else state.tables


def _wrong(
    properties: SparkProperties,
    options: ApplyOptions,
    made: Mapping[str, TableState],
    relation: Relation,
    called: Callable[[str], str],
) -> Iterator[WaltapError]:
    place = options.places.of(relation.schema, relation.table)
    name = relation.name if place is None else place.name
    mode, table = options.modes.of(name), made.get(relation.name)
    columns = [called(column.name) for column in relation.columns]
    made_as = table.mode if table is not None and table.columns else None
    key = None if relation.primary_key is None else tuple(map(called, relation.primary_key))
    yield from mode_errors(relation.name, name, (made_as, mode), key, columns)
    by = properties.format_properties
    layout = FileLayout.of(name, by.get("format.partition.by", ""), by.get("format.cluster.by", ""))
    if table is None:
        try:
            layout.require(relation.name, [*columns, *mode.columns])
        except LayoutUnfit as error:
            yield error
