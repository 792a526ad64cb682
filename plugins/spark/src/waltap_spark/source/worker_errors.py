"""Show the data source's errors without a worker's stack."""

import functools
import os
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from waltap.errors import WaltapError

P = ParamSpec("P")
R = TypeVar("R")

# Variables that Spark gives its Python workers.
_WORKER: Final = ("PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH")


def shows_text(method: Callable[P, R]) -> Callable[P, R]:
    """Let Spark show an error of ``method`` by its text alone.

    Otherwise the stack of the worker comes first, and code and remedy at its end. A worker that
    planned needlessly ends, so the setting concerns no other error.
    """

    @functools.wraps(method)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return method(*arguments, **named)
        except WaltapError:
            if any(name in os.environ for name in _WORKER):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return called
