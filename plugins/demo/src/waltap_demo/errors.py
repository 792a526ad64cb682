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


class DemoIncomplete(SourceError):
    """A package that only the demo needs is missing."""

    code = "WT-2901"
    remedy = "Install the demo's packages: pip install 'waltap[demo]'."


class DemoStuck(WaltapError):
    """The engine or Spark makes no progress."""

    code = "WT-9101"
    remedy = "The engine's log is {engine_log}, Spark's is {spark_log}; please report both."


class DemoDifferent(WaltapError):
    """The source's and Spark's tables differ."""

    code = "WT-9102"
    remedy = "This is a bug in waltap: please report it with the files in {folder}."
