"""The transform ``route``: sends the records of some tables to another topic."""

from collections.abc import Callable
from typing import Self

import msgspec
from pydantic import model_validator

from waltap.capture.java_regex import java_pattern, java_replacement
from waltap.capture.name_adjustment import sanitised_topic
from waltap.config.property import Properties, declare
from waltap.decode.message import Change, Delete, Insert, LogicalMessage, Truncate, Update
from waltap.decode.relation import Relation
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart

__all__ = ["RouteProperties", "table_router"]

RELATIONS_KEPT = 10_000


class RouteProperties(Properties):
    """Which tables, and where their records go."""

    regex: str = declare(
        "regex",
        summary="Tables that are concerned: a pattern that matches all of schema.table.",
        examples=(r"sales\.orders_(\d+)",),
    )
    replacement: str = declare(
        "replacement",
        summary="Topic of their records; $1 is the pattern's first group.",
        examples=("sales.orders",),
    )

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        java_replacement(self.replacement, java_pattern(self.regex))
        return self


def table_router(properties: RouteProperties) -> Callable[[Batch], Batch]:
    """Return the transform: it gives relations their `Relation.topic`, once per version.

    Topics are the only thing that changes: rows, keys and the source block still name the table.
    """
    pattern = java_pattern(properties.regex)
    template = java_replacement(properties.replacement, pattern)
    routed: dict[Relation, Relation] = {}

    def route(relation: Relation) -> Relation:
        known = routed.get(relation)
        if known is None:
            known = relation
            match = pattern.fullmatch(relation.name)
            topic = sanitised_topic(match.expand(template)) if match else ""
            if topic:
                known = msgspec.structs.replace(relation, topic=topic)
            if len(routed) >= RELATIONS_KEPT:
                routed.clear()
            routed[relation] = known
        return known

    def change(given: Change) -> Change:
        if isinstance(given, LogicalMessage):
            return given
        if isinstance(given, Truncate):
            relations = tuple(map(route, given.relations))
            return msgspec.structs.replace(given, relations=relations)
        relation = route(given.relation)
        if relation is given.relation:
            return given
        if isinstance(given, Insert):
            return Insert(relation, given.lsn, given.new, given.xid)
        if isinstance(given, Update):
            return Update(relation, given.lsn, given.new, given.old, given.old_kind, given.xid)
        return Delete(relation, given.lsn, given.old, given.old_kind, given.xid)

    def transform(batch: Batch) -> Batch:
        parts = [
            msgspec.structs.replace(part, changes=list(map(change, part.changes)))
            if isinstance(part, TransactionPart)
            else msgspec.structs.replace(part, relation=route(part.relation))
            if isinstance(part, SnapshotRows)
            else part
            for part in batch.parts
        ]
        return msgspec.structs.replace(batch, parts=parts)

    return transform
