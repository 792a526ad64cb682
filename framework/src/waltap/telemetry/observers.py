"""Who else watches a run, as its profile says: OpenTelemetry and OpenLineage. Nothing of it is there
otherwise."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.host import Host
    from waltap.pipeline import Engine

__all__ = ["observed"]


@contextmanager
def observed(engine: "Engine", host: "Host") -> Iterator[None]:
    """Have a run watched while the block lasts. Raises: LibraryMissing."""
    wanted = engine.profile.engine
    with ExitStack() as watching:
        if wanted.otel_endpoint:
            from waltap.telemetry.otlp import Telemetry

            engine.watch()
            telemetry = Telemetry(
                engine.profile.name, engine.status, wanted.otel_endpoint, wanted.otel_interval_ms
            )
            host.register(watching.enter_context(telemetry), "OpenTelemetry")
        if wanted.lineage_to:
            from waltap.telemetry.lineage import Lineage

            lineage = Lineage(engine, wanted.lineage_to, wanted.lineage_namespace)
            host.register(watching.enter_context(lineage), "OpenLineage")
        yield
