"""Properties of each of several sinks, beside the sink's own."""

from typing import Literal

from waltap.base.property import Properties, declare

__all__ = ["OutletProperties"]


class OutletProperties(Properties):
    """What a pipeline of several sinks says of each, beside the sink's own properties."""

    name: str | None = declare(
        "name",
        default=None,
        pattern="[A-Za-z0-9][A-Za-z0-9_-]{0,62}",
        summary="What the sink is called among the pipeline's, and the folder of its state; by default "
        "its type.",
    )
    on_failure: Literal["stop", "pause"] = declare(
        "on.failure",
        default="stop",
        summary="What becomes of the pipeline when this sink fails while changes are streamed: it stops, "
        "or goes on with the others. The sink is then tried again, and gets what it missed, which the "
        "server keeps for it. While a snapshot is read a failure always stops the pipeline.",
    )
    errors_tolerance: Literal["none", "all", "dead_letter"] | None = declare(
        "errors.tolerance",
        default=None,
        summary="What becomes of records that this sink refuses; by default as errors.tolerance of the "
        "pipeline says.",
    )
    retry_ms: int = declare(
        "pause.retry.ms",
        default=30_000,
        ge=100,
        summary="How long a paused sink rests before it is tried again.",
        unit="ms",
    )
    pause_bytes: int = declare(
        "pause.max.bytes",
        default=4 * 1024**3,
        ge=0,
        summary="Most WAL that the server may have to keep for this sink while it is paused; beyond it "
        "the pipeline stops.",
        unit="bytes",
    )
