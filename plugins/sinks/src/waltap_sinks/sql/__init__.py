"""Databases as destinations: rows as the source has them, and the position, in one transaction."""

from importlib import import_module
from typing import Any

__all__ = ["SqlProperties", "SqlSink"]

_MODULES = {"SqlProperties": "properties", "SqlSink": "sink"}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: SQLAlchemy takes its time."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
