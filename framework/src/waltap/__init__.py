"""waltap: change data capture for PostgreSQL and databases of its family, in Python.

`Pipeline` runs a profile in a program, `stream` gives its batches to a loop; `Engine` is what both are
made of. They load what they need when they are first used.
"""

from typing import TYPE_CHECKING, Any

from waltap.version import VERSION

if TYPE_CHECKING:
    from waltap.pipeline import Engine, Limits
    from waltap.pipeline.batches import BatchStream, StreamedBatch, stream
    from waltap.pipeline.in_process import Pipeline

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
    """Import the public names on first use (PEP 562): ``import waltap`` stays quick."""
    if name in {"Engine", "Limits"}:
        from waltap import pipeline

        return getattr(pipeline, name)
    if name == "Pipeline":
        from waltap.pipeline import in_process

        return in_process.Pipeline
    if name in {"BatchStream", "StreamedBatch", "stream"}:
        from waltap.pipeline import batches

        return getattr(batches, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
