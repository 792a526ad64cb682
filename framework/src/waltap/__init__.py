"""waltap: change data capture in Python for PostgreSQL-compatible databases.

`Pipeline` runs a profile in a program, `stream` yields its batches to a loop, and both use `Engine`. Each
is imported on first use.
"""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562), for a quick ``import waltap``."""
    if name in {"Engine", "Limits"}:
        from waltap import pipeline

        return getattr(pipeline, name)
    if name == "Pipeline":
        from waltap.pipeline.api import in_process

        return in_process.Pipeline
    if name in {"BatchStream", "StreamedBatch", "stream"}:
        from waltap.pipeline.api import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
