"""Errors of the demo."""

from waltap.errors import SourceError, WaltapError

DemoIncomplete = SourceError.define("DemoIncomplete", "WT-2901")
DemoStuck = WaltapError.define("DemoStuck", "WT-9101")
DemoDifferent = WaltapError.define("DemoDifferent", "WT-9102")
