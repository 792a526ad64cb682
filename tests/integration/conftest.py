"""Fixtures of several modules: targets of the SQL sink."""

from tests.harness.sql import duck, file, maria, place, postgres

__all__ = ["duck", "file", "maria", "place", "postgres"]
