"""Register the observers that a profile asks for.

These are the status page, OpenTelemetry and OpenLineage. Their modules are imported only on demand.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.plugins.host import Host
    from waltap.services.monitor.status import ObservedEngine


@contextmanager
def observed(engine: "ObservedEngine", host: "Host", *, http: str | None = None) -> Iterator[None]:
    """Observe a run while the block lasts.

    ``http`` replaces the profile's address of the status page. Raises: LibraryMissing,
    ConfigurationError.
    """
    wanted = engine.profile.engine
    with ExitStack() as watching:

        def admit(observer: object, name: str) -> None:
            host.register(observer, name)
            watching.callback(host.unregister, name)

        if address := http or wanted.http:
            from waltap.services.monitor.server import MonitorServer

            monitor = watching.enter_context(MonitorServer(engine, address, wanted.http_token))
            admit(monitor.exposition, "metrics")
        if wanted.otel_endpoint:
            from waltap.services.telemetry.otlp import OtlpObserver

            engine.watch()
            telemetry = OtlpObserver(
                engine.profile.name, engine.status, wanted.otel_endpoint, wanted.otel_interval_ms
            )
            admit(watching.enter_context(telemetry), "OpenTelemetry")
        if wanted.lineage_to:
            from waltap.services.telemetry.lineage import LineageObserver

            lineage = LineageObserver(engine, wanted.lineage_to, wanted.lineage_namespace)
            watching.enter_context(lineage.delivery)
            admit(lineage, "OpenLineage")
        yield
