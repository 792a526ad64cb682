"""The compiled rules of a pipeline's capture.

Stages ask them per table and per relation version, never per row.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache

from waltap.base.plugin_errors import usable
from waltap.changes.capture.column_transform import ColumnTransform, ColumnTransforms
from waltap.changes.capture.java_regex import NameMatcher
from waltap.changes.capture.properties import CaptureProperties, key_patterns
from waltap.changes.capture.topic_naming import (
    TopicNaming,
    field_namer,
    joined,
    sanitised_topic,
    sanitising,
    schema_namer,
    with_schema,
)
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.type_mapping import TypeOptions

_BUILTIN_SCHEMAS = re.compile(r"pg_catalog|information_schema|pg_toast.*|pg_temp.*", re.IGNORECASE)
# Tables whose answer is cached. A database may create tables without end.
MAX_ANSWERS = 20_000

_BUILTIN_TABLES = frozenset({"spatial_ref_sys"})

# Prefixes of logical messages whose filter result is cached.
MAX_PREFIXES = 10_000


def _always(_name: str) -> bool:
    return True


def _listed(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Return the test of an include list, else of an exclude list.

    Without lists every name passes.
    """
    if include:
        return NameMatcher(include)
    if exclude:
        excluded = NameMatcher(exclude)
        return lambda name: not excluded(name)
    return _always


class CaptureRules:
    """Select and name the tables, columns, keys and messages of events."""

    def __init__(self, properties: CaptureProperties, naming: TopicNaming | None = None) -> None:
        """Compile ``properties``.

        ``naming`` is the result of a topic naming strategy's factory. Without it topics are
        called prefix.schema.table.
        """
        self.properties = properties
        # The modes of the type table.
        self.types = _type_options(properties)
        # Operations without events; "none" is a word for the empty list, and Debezium skips no "r".
        self.skipped = frozenset(properties.skipped_operations) - {"none", "r"}
        self.schema_name = schema_namer(properties.schema_name_adjustment)
        self.field_name = field_namer(properties.field_name_adjustment)
        # Applications may make up a prefix per message, so the cache has a bound.
        self.message_prefix: Callable[[str], bool] = lru_cache(MAX_PREFIXES)(
            _listed(properties.message_prefix_include, properties.message_prefix_exclude)
        )
        self._naming = naming or sanitising(with_schema, sanitised_topic)(properties)
        # A decision costs a few regular expressions.
        self.captures: Callable[[str, str], bool] = lru_cache(MAX_ANSWERS)(self._captures)
        self._schema = _listed(properties.schema_include, properties.schema_exclude)
        self._table = _listed(properties.table_include, properties.table_exclude)
        self._column = _listed(properties.column_include, properties.column_exclude)
        self._transforms = ColumnTransforms(properties)
        self._keys = key_patterns(properties.message_key_columns or "")
        self.signal_table = properties.signal_table

    # --- what is captured -------------------------------------------------------------------------

    def _captures(self, schema: str, table: str) -> bool:
        # The engine needs signals, whatever the lists say.
        if (schema, table) == self.signal_table:
            return True
        if self.properties.ignore_builtin and (
            _BUILTIN_SCHEMAS.fullmatch(schema) or table in _BUILTIN_TABLES
        ):
            return False
        return self._schema(schema) and self._table(f"{schema}.{table}")

    def columns(self, relation: Relation) -> tuple[int, ...]:
        """Return the indexes of the columns that event values have, in order."""
        if self._column is _always:
            return tuple(range(len(relation.columns)))
        return tuple(
            index
            for index, column in enumerate(relation.columns)
            if self._column(f"{relation.name}.{column.name}")
        )

    def keys(self, relation: Relation) -> tuple[int, ...]:
        """Return the indexes of the key columns, in key order."""
        names = {column.name: index for index, column in enumerate(relation.columns)}
        found: list[int] = []
        for pattern in self._keys:
            for name, index in names.items():
                if index not in found and pattern.fullmatch(f"{relation.name}.{name}"):
                    found.append(index)
        # `message.key.columns` replaces the primary key only where it names a column.
        if not found:
            found = [names[name] for name in relation.primary_key or () if name in names]
        return tuple(found)

    def keys_never_sent(self, relation: Relation) -> list[str]:
        """Return the columns of `message.key.columns` that old rows of a relation lack."""
        keys = [relation.columns[index] for index in self.keys(relation)]
        if not any(column.in_identity for column in relation.columns):
            return []  # no old rows come
        if {column.name for column in keys} == set(relation.primary_key or ()):
            return []
        return [column.name for column in keys if not column.in_identity]

    def transform(
        self, relation: Relation, column: Column, schema: Schema | None, *, listed: bool = False
    ) -> ColumnTransform | None:
        return self._transforms.column(relation.name, column, schema, listed=listed)

    def meant_to_hide(self, relation: Relation, column: Column) -> bool:
        return self._transforms.meant(relation.name, column.name)

    # --- what things are called -------------------------------------------------------------------

    def topic(self, schema: str, table: str) -> str:
        return usable(self._naming(schema, table), str, self._naming)

    def unrenamed(self, schema: str, table: str) -> tuple[str, ...]:
        """Return the names that the naming strategy's patterns match.

        () means that the strategy has no patterns.
        """
        # Optional for strategies of plugins, as is `key_field`.
        names = getattr(self._naming, "unrenamed", None)
        return () if names is None else names(schema, table)

    def key_field(self, schema: str, table: str) -> tuple[str, str] | None:
        extra = getattr(self._naming, "key_field", None)
        return None if extra is None else extra(schema, table)

    @property
    def heartbeat_topic(self) -> str:
        properties = self.properties
        if properties.topic_heartbeat_name:
            return sanitised_topic(properties.topic_heartbeat_name)
        parts = (properties.topic_heartbeat_prefix, properties.topic_prefix)
        return sanitised_topic(joined(properties.topic_delimiter, *parts))

    @property
    def transaction_topic(self) -> str:
        properties = self.properties
        parts = (properties.topic_prefix, properties.topic_transaction)
        return sanitised_topic(joined(properties.topic_delimiter, *parts))

    @property
    def message_topic(self) -> str:
        # The dot is fixed: `topic.delimiter` does not replace it.
        return f"{self.properties.topic_prefix}.message"


def _type_options(properties: CaptureProperties) -> TypeOptions:
    same = properties.model_dump(include={option.name for option in fields(TypeOptions)})
    placeholder = properties.unavailable_value_placeholder
    failure = properties.event_converting_failure
    if placeholder.startswith("hex:"):
        same["unavailable_value_placeholder"] = bytes.fromhex(placeholder[4:])
    else:
        same["unavailable_value_placeholder"] = placeholder.encode()
    # A dead letter begins with an error, which the engine catches.
    failure = "fail" if failure == "dead_letter" else failure
    return TypeOptions(**same, event_converting_failure_handling_mode=failure)
