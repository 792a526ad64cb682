"""Write rows to databases, with the position in the same transaction."""

from importlib import import_module
from typing import Any

__all__ = ["SqlProperties", "SqlSink"]

_MODULES = {"SqlProperties": "properties", "SqlSink": "sink"}


def __getattr__(name: str) -> Any:
    """Import on first use: SQLAlchemy is slow to load."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
