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
        summary="Name of the sink among the pipeline's, and of its state folder; by default its "
        "type.",
    )
    on_failure: Literal["stop", "pause"] = declare(
        "on.failure",
        default="stop",
        summary="If this sink fails during streaming: stop the pipeline, or pause this sink and "
        "continue with the others. A paused sink is retried and gets everything it "
        "missed, since the server keeps the WAL. During a snapshot a failure always "
        "stops the pipeline.",
    )
    errors_tolerance: Literal["none", "all", "dead_letter"] | None = declare(
        "errors.tolerance",
        default=None,
        summary="The same for records that this sink refuses; by default the pipeline's "
        "errors.tolerance.",
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
        summary="Most WAL that the server may keep for this sink while it is paused; beyond it "
        "the pipeline stops.",
        unit="bytes",
    )
