"""Stage 1: read changes from a source and track their positions."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.changes.transactions.position import Position
    from waltap.ports.source.connector import (
        ChangeStream,
        Connector,
        ConnectorContext,
        PreflightCheck,
        StartPosition,
    )

__all__ = [
    "ChangeStream",
    "Connector",
    "ConnectorContext",
    "Position",
    "PreflightCheck",
    "StartPosition",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
