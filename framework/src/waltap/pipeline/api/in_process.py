"""Run a pipeline inside a Python program.

with waltap.Pipeline("shop.toml") as shop:
    shop.wait(lambda status: status.changes >= 1000)
    print(shop.status().partitions[0].lag_bytes)
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from waltap.changes.transactions.transaction import Notification
from waltap.config.layers import load, read_tables
from waltap.config.resolve import resolve
from waltap.errors import WaltapError
from waltap.pipeline.engine.build import PipelineStages
from waltap.pipeline.engine.engine import Engine
from waltap.pipeline.engine.preflight import checks
from waltap.pipeline.runtime.run_state import Limits
from waltap.plugins.host import Host
from waltap.ports.signals.inbox import SignalAnswer
from waltap.ports.source.connector import MadeByRun, PreflightCheck
from waltap.services.monitor.status import (
    PipelineStatus,
    StatusHistory,
    StatusSample,
    status_document,
)
from waltap.services.telemetry.observers import observed

log = logging.getLogger(__name__)

POLL_S = 0.05

PipelineEnded = WaltapError.define("PipelineEnded", "WT-1202")


class Pipeline:
    """Run one pipeline of ``profile``: a file, or tables.

    ``sink`` (``NAME`` or ``NAME:VALUE``) replaces the profile's, ``overrides`` are further properties;
    ``plugins`` are objects with hooks, registered for this pipeline alone. ``confirmable`` is as for
    `Engine`: for an owner that keeps WAL on the server until a consumer behind the sink has the data.
    Relative paths start at the folder of the file, for tables at the current directory at the time of
    the call. Each run has the profile's status page, OpenTelemetry and OpenLineage.

    `run` blocks; `start` runs in its own thread, and the ``with`` statement starts and stops. An ended
    pipeline may be started again, and continues from its position. Any thread may call any method. Hooks
    and notifications are called while the run waits: there `stop` only asks for the end.
    """

    def __init__(
        self,
        profile: str | Path | Mapping[str, Any],
        *,
        sink: str | None = None,
        overrides: Mapping[str, str] | None = None,
        plugins: tuple[object, ...] = (),
        confirmable: Callable[[int], int] | None = None,
    ) -> None:
        """Read and check the profile. Raises: ConfigurationError, PluginError."""
        self._host = Host()
        for number, plugin in enumerate(plugins, 1):
            self._host.register(plugin, f"plugin {number}")
        raw = read_tables(profile) if isinstance(profile, Mapping) else load(Path(profile))
        raw.require_running()
        if isinstance(profile, Mapping):
            log.info("relative paths of this profile start at %s", raw.folder)
        self._profile = resolve(raw, self._host, sink=sink, overrides=overrides)
        self._confirmable = confirmable
        if confirmable is not None:
            self._host.add_callback(confirmable)
        self._engine = Engine(self._profile, self._host)
        self._thread: threading.Thread | None = None
        # The thread that runs the engine; threads that call a listener; whether no run is in progress.
        self._runner: threading.Thread | None = None
        self._calling = threading.local()
        self._ended = threading.Event()
        self._ended.set()
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[Notification], object]] = []
        self._history = StatusHistory(self.status)

    @property
    def name(self) -> str:
        return self._profile.name

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def check(self) -> list[PreflightCheck]:
        """Run the checks of a start, as `waltap doctor` does, without changes.

        Raises: ConnectionLost.
        """
        stages = PipelineStages(self._profile, self._host)
        connector = stages.open_connector(MadeByRun())
        try:
            return checks(stages, connector, locked=False)
        finally:
            connector.close()

    # --- its life -----------------------------------------------------------------------------------

    def run(self, limits: Limits | None = None) -> None:
        """Capture until ``limits`` are reached or `stop` is called.

        Raises: WaltapError.
        """
        self._observed(self._begin(limits))

    def start(self, limits: Limits | None = None) -> Self:
        """Capture in a new thread; `stop` and `wait` raise its error.

        Raises: RuntimeError while it runs already.
        """
        engine = self._begin(limits)

        def run() -> None:
            try:
                self._observed(engine)
            except BaseException as error:  # noqa: BLE001 - raised again by `stop` and `wait`
                self._failure = error

        self._thread = threading.Thread(target=run, name=f"waltap-{self.name}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._ended.set()
            raise
        return self

    def stop(self) -> None:
        """Request a clean end and wait; batches are flushed and confirmed first.

        In a hook or a notification it only requests the end, which comes behind them. Raises:
        WaltapError of the started pipeline.
        """
        self._engine.stop()
        self._joined()

    def wait(
        self, until: Callable[[PipelineStatus], bool] | None = None, *, timeout: float | None = None
    ) -> PipelineStatus:
        """Wait for a status or the end; return the status.

        ``timeout`` is in seconds. Raises: TimeoutError; PipelineEnded; WaltapError of the pipeline;
        RuntimeError in a hook or a notification, which would wait for itself.
        """
        if self._called_by_run():
            raise RuntimeError(
                f"pipeline {self.name} calls this function, and would wait for itself"
            )
        waited = threading.Event()
        remaining = float("inf") if timeout is None else timeout
        while True:
            running, status = self.running, self.status()
            if until is not None and until(status):
                return status
            if not running:
                self._joined()
                if until is None:
                    return status
                raise PipelineEnded(f"pipeline {self.name} is {status.state}")
            if remaining <= 0:
                raise TimeoutError(f"pipeline {self.name} is {status.state} after {timeout} s")
            waited.wait(POLL_S)
            remaining -= POLL_S

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        try:
            self.stop()
        except WaltapError:
            if kind is None:  # the body's own error says more
                raise

    # --- status, signals and notifications ------------------------------------------------------

    def status(self) -> PipelineStatus:
        """Return the status of this run as an immutable object."""
        return self._engine.status()

    def history(self) -> list[StatusSample]:
        """Return samples of the last hour, every few seconds, oldest first."""
        return self._history.points()

    def signal(
        self, kind: str, data: Mapping[str, object] | str = "", *, identifier: str = ""
    ) -> "Future[SignalAnswer]":
        """Send a signal to the running pipeline, as `Engine.signal` does.

        Raises: RuntimeError if it does not run.
        """
        if not self.running:
            raise RuntimeError(f"pipeline {self.name} does not run")
        return self._engine.signal(kind, data, identifier=identifier)

    def on_notification(self, call: Callable[[Notification], object]) -> None:
        """Call ``call`` with each notification of this and later runs.

        It runs in the engine's thread.
        """

        def called(notification: Notification) -> None:
            self._calling.now = True
            try:
                call(notification)
            finally:
                self._calling.now = False

        self._listeners.append(called)
        if self.running:
            self._engine.on_notification(called)

    def __repr__(self) -> str:
        return f"<waltap.Pipeline {self.name}: {self.status().state}>"

    def _repr_html_(self) -> str:
        from waltap.services.monitor.views import status_html

        return status_html(status_document(self.status()))

    def _observed(self, engine: Engine) -> None:
        """Run with samples and the profile's observers."""
        self._runner = threading.current_thread()
        self._history.start()
        try:
            with observed(engine, self._host):
                engine.run()
        finally:
            self._history.stop()
            self._runner = None
            self._ended.set()

    def _begin(self, limits: Limits | None) -> Engine:
        if self.running:
            raise RuntimeError(f"pipeline {self.name} runs already")
        self._engine = Engine(
            self._profile, self._host, limits=limits, confirmable=self._confirmable
        )
        for call in self._listeners:
            self._engine.on_notification(call)
        self._failure = None
        self._history = StatusHistory(self.status)
        self._thread = None
        self._ended.clear()
        return self._engine

    def _called_by_run(self) -> bool:
        """Return whether the run's hook or notification calls."""
        return threading.current_thread() is self._runner or getattr(self._calling, "now", False)

    def _joined(self) -> None:
        if self._called_by_run():
            return
        self._ended.wait()
        if self._thread is not None:
            self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
