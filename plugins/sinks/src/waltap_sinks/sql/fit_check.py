"""Check that MariaDB or MySQL tables can hold the rows."""

from collections.abc import Iterator
from typing import Final

from waltap.base.text import sql_word
from waltap.changes.decode.relation import Column, Relation, TypeKind
from waltap.errors import SinkError, WaltapError
from waltap.plugins.check_context import CheckContext
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import PreflightCheck
from waltap.ports.source.roles import planned
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import base_column, target_name
from waltap_sinks.sql.tables import inexact
from waltap_sinks.sql.targets import target_of
from waltap_sinks.sql.targets.target import SqlTarget

TEXTS: Final = """
    SELECT column_name, column_type, character_set_name FROM information_schema.columns
    WHERE table_schema = database() AND table_name = %s AND character_set_name IS NOT NULL
"""
# Types whose values are short, or are no text in the target.
SHORT: Final = frozenset(
    {
        *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "money", "uuid", "oid"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "name", "char"),
        *("inet", "cidr", "macaddr", "macaddr8", "bytea"),
    }
)


def held(context: CheckContext) -> list[PreflightCheck]:
    """Return the values that a MariaDB or MySQL target would refuse."""
    profile = context.profile
    mine = [
        each.properties
        for each in profile.sinks
        if isinstance(each.properties, SqlProperties)
        and each.properties.url.lower().startswith(("mariadb", "mysql"))
    ]
    if not mine:
        return []
    own = SinkContext(pipeline=profile.name, state_dir=profile.engine.state_dir)
    try:
        targets = [(each, target_of(each, own)) for each in mine]
        relations = [each.relation for each in planned(context.connector, context.offset).tables]
    except WaltapError:
        return []  # the check of the connector or of the sink reports it
    flagged = any(each.history != "none" for each in mine)
    found = [check for relation in relations for check in _long_keys(relation, flagged)]
    for properties, target in targets:
        found += _of_target(properties, target, relations)
    return found


def _long_keys(relation: Relation, flagged: bool) -> Iterator[PreflightCheck]:
    from waltap_sinks.sql.targets.mysql import FLAG_BYTES, INDEX_BYTES

    names = relation.primary_key or ()
    shared = INDEX_BYTES - FLAG_BYTES * flagged
    share = shared // max(1, len(names))
    columns = [column for column in relation.columns if column.name in names]
    long = [column.name for column in columns if _may_exceed(base_column(column), share // 4)]
    if long:
        most = share // 4
        pattern = f"{relation.name}.{long[0]}".replace(".", r"\.")
        limits = " AND ".join(f"length({sql_word(name)}) <= {most}" for name in long)
        table = f"{sql_word(relation.schema)}.{sql_word(relation.table)}"
        yield PreflightCheck.warning(
            "target keys",
            f"the target holds {most} characters of {', '.join(long)}, of the key of "
            f"{relation.name} ({shared // 4} by {len(names)} columns); a longer value ends the run "
            "(WT-5705)",
            f"Limit the length in the source: ALTER TABLE {table} ADD CHECK ({limits}); or send a "
            f"digest instead: column.mask.hash.SHA-256.with.salt.SALT = {pattern}",
        )


def _may_exceed(column: Column, most: int) -> bool:
    kind = column.data_type
    if kind is None or kind.kind is not TypeKind.BASE:
        return False
    if kind.name in {"varchar", "bpchar"}:
        return not 4 < column.typmod <= most + 4
    return kind.name not in SHORT


def _of_target(
    properties: SqlProperties, target: SqlTarget, relations: list[Relation]
) -> Iterator[PreflightCheck]:
    """Yield the misfits of existing tables."""
    from waltap_sinks.sql.targets.mysql import MysqlTarget

    if "{topic}" in properties.table_format:
        return
    assert isinstance(target, MysqlTarget)
    try:
        target.open()
        for relation in relations:
            name = target_name(relation, "", properties.table_format, schemas=False)
            described = target.describe(name)
            if described is None:
                continue
            keys = {each.casefold() for each in relation.primary_key or ()}
            for column, type_, encoding in target.run(TEXTS, [name.name]):
                existing = described.columns[column]
                if column.casefold() in keys and existing.collation:
                    exact = f"{existing.type} {target.collated}"
                    yield PreflightCheck.failed(
                        f"target {name}", inexact(target, name, existing, exact)
                    )
                elif encoding != "utf8mb4":
                    yield PreflightCheck.warning(
                        f"target {name}",
                        f"column {column} is {encoding}: a character that this lacks ends the run "
                        "(WT-5705)",
                        f"ALTER TABLE {target.quoted_table(name)} MODIFY {target.quoted(column)} "
                        f"{type_} CHARACTER SET utf8mb4",
                    )
    except Exception as error:
        if isinstance(error, SinkError) or not target.speaks(error):
            raise
        # The check of the sink reports it.
    finally:
        target.close()
