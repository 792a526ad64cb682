"""Maintain live Spark tables from the waltap change log."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap_spark.read.live import LiveTables, open_tables

__all__ = ["LiveTables", "open_tables"]

# every start of ``waltap`` imports this package, so it must stay cheap
__getattr__ = on_first_use(__name__)
