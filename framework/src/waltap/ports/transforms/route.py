"""The transform ``route``: send records of tables to another topic."""

from collections.abc import Callable
from typing import Self

import msgspec
from pydantic import model_validator

from waltap.base.property import Properties, declare
from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap.changes.capture.name_adjustment import sanitised_topic
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import Batch
from waltap.ports.transforms.rewrite import with_relations


class RouteProperties(Properties):
    """Tables to route, and the topic of their records."""

    routes = True

    regex: str = declare(
        "regex",
        summary="Tables to route: a pattern that matches all of schema.table.",
        examples=(r"sales\.orders_(\d+)",),
        patterns="table",
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
    """Return the transform that sets `Relation.topic`.

    Only topics change: rows, keys and the source block still name the table.
    """
    pattern = java_pattern(properties.regex)
    template = java_replacement(properties.replacement, pattern)

    def routed(relation: Relation) -> Relation:
        match = pattern.fullmatch(relation.name)
        # A group of the pattern may have characters that a topic must not have.
        topic = sanitised_topic(match.expand(template)) if match else ""
        return msgspec.structs.replace(relation, topic=topic) if topic else relation

    return with_relations(routed)
