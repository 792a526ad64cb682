"""Errors of the demo.

```
SourceError
└── DemoIncomplete    WT-2901   a package of the demo is missing
WaltapError
├── DemoStuck         WT-9101   the engine or Spark makes no progress
└── DemoDifferent     WT-9102   source and Spark differ at the end
```
"""

from waltap.errors import SourceError, WaltapError

DemoIncomplete = SourceError.define(
    "DemoIncomplete",
    "WT-2901",
    "A package that only the demo needs is missing.",
    "Install the demo's packages: pip install 'waltap[demo]'.",
)


class DemoStuck(WaltapError):
    """The engine or Spark makes no progress."""

    code = "WT-9101"
    remedy = "The engine's log is {engine_log}, Spark's is {spark_log}; please report both."


DemoDifferent = WaltapError.define(
    "DemoDifferent",
    "WT-9102",
    "The source's and Spark's tables differ.",
    "This is a bug in waltap: please report it with the files in {folder}.",
)
