"""Stage 1: read changes from a source and track their positions."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.changes.transactions.position import START, Position, Positions, lsn_text, parse_lsn
    from waltap.errors import StopRequested
    from waltap.ports.source.connector import (
        ChangeStream,
        Connector,
        ConnectorContext,
        PreflightCheck,
        StartPosition,
    )
    from waltap.ports.source.slot_status import SlotStatus

__all__ = [
    "START",
    "ChangeStream",
    "Connector",
    "ConnectorContext",
    "Position",
    "Positions",
    "PreflightCheck",
    "SlotStatus",
    "StartPosition",
    "StopRequested",
    "lsn_text",
    "parse_lsn",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
