"""Errors of the demo."""

from waltap.errors import SourceError, WaltapError

DemoIncomplete = SourceError.define("DemoIncomplete", "WT-2901")


class DemoStuck(WaltapError):
    """The engine or Spark makes no progress."""

    code = "WT-9101"
    remedy = "The engine's log is {engine_log}, Spark's is {spark_log}; please report both."


DemoDifferent = WaltapError.define("DemoDifferent", "WT-9102")
