"""waltap: change data capture in Python for PostgreSQL-compatible databases.

`Pipeline` runs a profile in a program, `stream` yields its batches to a loop, and both use `Engine`. Each
is imported on first use.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use
from waltap.version import VERSION

if TYPE_CHECKING:
    from waltap.pipeline import Engine, Limits
    from waltap.pipeline.api.batches import BatchStream, StreamedBatch, stream
    from waltap.pipeline.api.in_process import Pipeline

__all__ = [
    "BatchStream",
    "Engine",
    "Limits",
    "Pipeline",
    "StreamedBatch",
    "__version__",
    "stream",
]

__version__ = VERSION

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
