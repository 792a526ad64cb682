"""Whether tables can be kept as a profile says: told before a start, not when they stand still."""

from collections.abc import Iterator, Mapping
from typing import Final

from waltap.decode.relation import Relation
from waltap.errors import WaltapError
from waltap.source.check_context import CheckContext
from waltap.source.connector import Check
from waltap_spark.applier import ApplyOptions
from waltap_spark.errors import FormatLimit, MadeOtherwise, ModeUnfit
from waltap_spark.modes import said, unfit
from waltap_spark.output import Output, TableState
from waltap_spark.properties import SparkProperties
from waltap_spark.settings import apply_options
from waltap_spark.targets import Layout

__all__ = ["kept_as_said"]

NAME: Final = "spark tables"


def kept_as_said(context: CheckContext) -> list[Check]:
    """Return a warning for each table that would stand still at its first change."""
    profile = context.profile
    sinks = [outlet.sink for outlet in profile.outlets] or [profile.sink]
    mine = [sink.properties for sink in sinks if isinstance(sink.properties, SparkProperties)]
    if not mine:
        return []
    try:
        relations = [each.relation for each in context.connector.plan(context.offset).tables]
    except WaltapError:
        return []  # the check of the connector says why
    found: dict[str, WaltapError] = {}
    for properties in mine:
        options, made = apply_options(properties), _made(properties)
        for relation in relations:
            for error in _wrong(properties, options, relation, made):
                found.setdefault(relation.name, error)
    return [
        Check(name=NAME, verdict="warning", found=error.problem, remedy=error.advice())
        for error in found.values()
    ]


def _made(properties: SparkProperties) -> Mapping[str, TableState]:
    try:
        state = Output(f"{properties.path.rstrip('/')}/tables").state()
    except WaltapError:
        return {}  # who opens it for writing says why
    return {} if state is None else state.tables


def _wrong(
    properties: SparkProperties,
    options: ApplyOptions,
    relation: Relation,
    made: Mapping[str, TableState],
) -> Iterator[WaltapError]:
    place = options.places.of(relation.schema, relation.table)
    name = relation.name if place is None else place.name
    mode, table = options.modes.of(name), made.get(relation.name)
    columns = [column.name for column in relation.columns]
    if table is not None and table.columns and table.mode != mode:
        text = f"{relation.name} was made as {said(table.mode)}, and is to be {said(mode)}"
        yield MadeOtherwise(text, table=name)
    key = relation.primary_key
    reason = "" if key is None else unfit(mode, key, dict.fromkeys(columns, ""))
    if reason:
        yield ModeUnfit(f"{relation.name} cannot be {said(mode)}: {reason}", table=name)
    by = properties.format_properties
    layout = Layout.of(name, by.get("format.partition.by", ""), by.get("format.cluster.by", ""))
    if table is None:
        try:
            layout.require(relation.name, [*columns, *mode.columns])
        except FormatLimit as error:
            yield error
