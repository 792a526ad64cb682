"""Fixtures of several modules: targets of the SQL sink, and topics that Spark's tables follow."""

from tests.harness.sql import duck, file, maria, place, postgres
from tests.harness.topics import topic

__all__ = ["duck", "file", "maria", "place", "postgres", "topic"]
