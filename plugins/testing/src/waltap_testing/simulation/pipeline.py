"""A pipeline of simulated parts around the real engine."""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from waltap import plugin
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.config.pipeline_properties import EngineProperties
from waltap.config.profile import Component, Profile, TransformUse
from waltap.errors import WaltapError
from waltap.pipeline import Engine, Limits
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host
from waltap.ports.offsets.file_store import MemoryOffsetStore
from waltap.ports.snapshot.snapshotter import Snapshotter
from waltap.ports.specs import DecoderSpec, OffsetStoreSpec, SinkSpec, SnapshotterSpec
from waltap_testing.installed import InstalledMappings
from waltap_testing.simulation.clock import VirtualClock
from waltap_testing.simulation.destination import SimulatedDestination, sink_of
from waltap_testing.simulation.source import SimulatedSource, connector_of

NAME = "simulated"
# The default length of a run, 30 days: a run without other limits must end.
LONGEST_S = 30 * 24 * 3600.0


class ObservedNotices:
    """The calls of observer hooks, each with its time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.states: list[tuple[float, str]] = []
        self.failures: list[tuple[float, str, bool]] = []
        self.snapshots: list[tuple[float, str, str]] = []

    @hookimpl
    def on_state(self, state: str) -> None:
        self.states.append((self._clock.now, state))

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        code = error.code if isinstance(error, WaltapError) else type(error).__name__
        self.failures.append((self._clock.now, code, retried))

    @hookimpl
    def on_snapshot(self, event: str, table: str) -> None:
        self.snapshots.append((self._clock.now, event, table))


class SimulatedPipeline:
    """The clock, source and destination of one pipeline, over several runs.

    - ``folder`` holds the pipeline's state; the offset is kept in memory.
    - ``seed`` decides everything random: the same seed repeats the same run.
    - ``sink``, with its properties, replaces the sink in memory. It must take changes, not records
      (`SinkCapabilities.records`).
    - ``settings`` are engine properties by their names in profiles.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        sink: Component[SinkSpec] | None = None,
        transforms: Iterable[TransformUse] = (),
        **settings: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.source = SimulatedSource(self.clock)
        self.destination = SimulatedDestination(self.clock)
        self.store = MemoryOffsetStore()
        self.observed = ObservedNotices(self.clock)
        # As the engine's parameter of the same name; None keeps the engine's default.
        self.confirmable: Callable[[int], int] | None = None
        self._sink = sink or Component(sink_of(self.destination))
        # The sink in memory needs no types and no replica identities; others do.
        self._maps = sink is not None
        self._transforms = tuple(transforms)
        self._settings = {"waltap.state.dir": folder, **settings}
        self._chance = Random(seed)  # noqa: S311 - to be had again

    def engine(self, **limits: Any) -> Engine:
        """Return the engine of a new run; ``limits`` as for `Limits`."""
        # Installed plugins stay out: they could change the run from one machine to another.
        host = Host(discover=False)
        host.register(self.observed, "observed")
        if self._maps:
            host.register(InstalledMappings(), "installed")
        return Engine(
            self._profile(),
            host,
            limits=Limits(**({"max_seconds": LONGEST_S} | limits)),
            clock=self.clock,
            chance=self._chance,
            confirmable=self.confirmable,
        )

    def run(self, *, stop_at: float | None = None, **limits: Any) -> Engine:
        """Run until a limit, or until ``stop_at`` seconds of the clock.

        Without either the run ends after 30 days.

        Raises: the engine's errors.
        """
        engine = self.engine(**limits)
        if stop_at is not None:
            self.clock.at(stop_at, engine.stop)
        engine.run()
        return engine

    def _profile(self) -> Profile:
        (naming, *_), (json, *_) = plugin.register_topic_naming(), plugin.register_formats()
        capture = CaptureProperties.model_validate({"topic.prefix": NAME})
        return Profile(
            name=NAME,
            connector=Component(connector_of(self.source)),
            decoder=Component(_DECODER),
            snapshotter=Component(_SNAPSHOTTER),
            capture=capture,
            engine=EngineProperties.model_validate(self._settings),
            format=Component(json),
            topic_naming=Component(naming, capture),
            sink=self._sink,
            transforms=self._transforms,
            offset_store=Component(
                OffsetStoreSpec(
                    name="kept", summary="Memory.", factory=lambda _properties, _home: self.store
                )
            ),
        )


def _unused(*_arguments: object) -> Any:
    raise AssertionError("the source gives messages")


_DECODER = DecoderSpec(
    name="simulated",
    summary="None: messages come as they are.",
    factory=_unused,
    output_plugin="simulated",
    capabilities=DecoderCapabilities(),
)
_SNAPSHOTTER = SnapshotterSpec(
    name="simulated", summary="Once.", factory=lambda _properties: Snapshotter()
)
