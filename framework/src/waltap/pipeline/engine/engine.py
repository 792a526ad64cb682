"""Run one profile, over as many connections as necessary.

One thread pulls from the stream, renders, and writes to the sink: connection.py has one connection,
stream_loop.py its loop. The only other thread is the stream's own, which answers the server while a sink
blocks. An LSN is confirmed if and only if the sink's flush returned it and the offset store kept it.

Order of an end, clean or not: flush the sink, store the offset, confirm the LSN, close the stream, do the
server work of a clean stop, close the connector, close the sink. After a failed flush nothing is flushed,
stored or confirmed; a retry makes a new sink and starts from the stored offset.
"""

import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from waltap.base.network.retry import RetryBackoff
from waltap.base.text import text_of
from waltap.changes.transactions.transaction import Notification
from waltap.clock import Clock, RandomSource, SystemClock, new_identifier, system_chance
from waltap.config.profile import Profile, changes
from waltap.errors import (
    ConnectionLost,
    RetryVerdict,
    SinkError,
    SnapshotError,
    StopRequested,
    WaltapError,
)
from waltap.pipeline.delivery.fan_out import SinkReturned
from waltap.pipeline.delivery.redelivery import Redelivery, RedeliveryAsked, serve
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.engine.build import PipelineStages, chosen_password
from waltap.pipeline.engine.connection import SourceConnection
from waltap.pipeline.engine.run import PipelineRun
from waltap.pipeline.runtime.leadership import POLL_S, LeaseLost
from waltap.pipeline.runtime.lock import PipelineLock, PipelineRunning
from waltap.pipeline.runtime.run_state import Limits, RunState
from waltap.plugins.host import Host
from waltap.ports.offsets.state_folder import CONTROL, state_unusable
from waltap.ports.signals.inbox import SignalAnswer
from waltap.ports.signals.signal import Signal
from waltap.ports.sink.sink import OutputClosed
from waltap.services.control import (
    ControlAnswer,
    ControlSocket,
    RedeliveryRequest,
    SignalRequest,
    StatusRequest,
    request_of,
)
from waltap.services.monitor.status import PipelineStatus, status_document

log = logging.getLogger(__name__)

ENVELOPE_BYTES = 64 * 1024
"""Bytes of a request beyond its signal's data, which is twice as long as JSON text."""


@dataclass(frozen=True, slots=True)
class ControlServer:
    """Answer requests on the control socket."""

    # `Engine.signal`; queues a request for dead letters.
    signal: "Callable[..., Future[SignalAnswer]]"
    redeliver: "Callable[[RedeliveryRequest], Future[ControlAnswer]]"
    status: Callable[[], PipelineStatus]
    # Makes a new id.
    identifier: Callable[[], str]

    def answer(self, line: bytes) -> bytes:
        return msgspec.json.encode(self._answer(line))

    def _answer(self, line: bytes) -> ControlAnswer:
        try:
            request = request_of(line)
        except ValueError as error:
            return ControlAnswer(ok=False, reason=f"this is no request: {error}")
        if isinstance(request, StatusRequest):
            status = self.status()
            return ControlAnswer(ok=True, state=status.state, status=status_document(status))
        if isinstance(request, RedeliveryRequest):
            return self._redelivered(request)
        return self._signal(request)

    def _redelivered(self, request: RedeliveryRequest) -> ControlAnswer:
        """Wait for a redelivery, and return its outcome."""
        future = self.redeliver(request)
        try:
            found = future.result(request.wait_ms / 1000)
        except TimeoutError:
            # a redelivery that has begun cannot be cancelled: its end is awaited
            if future.cancel():
                state = self.status().state
                why = f"nothing was redelivered: the pipeline is in state {state}"
                return ControlAnswer(ok=True, state=state, accepted=False, reason=why)
            found = future.result()
        found.state = self.status().state
        return found

    def _signal(self, request: SignalRequest) -> ControlAnswer:
        answer = ControlAnswer(ok=True, identifier=request.identifier or self.identifier())
        data = "" if request.data is None else request.data
        future = self.signal(request.kind, data, identifier=answer.identifier)
        with suppress(TimeoutError):
            given = future.result(request.wait_ms / 1000)
            answer.accepted, answer.reason = given.accepted, given.reason
        answer.state = self.status().state
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """List the applied properties of a reload, and the others."""

    applied: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


class Engine:
    """Run one profile until it is done, stopped, or failed.

    ``run`` blocks; ``stop`` may be called from a signal handler or another thread. ``clock`` and
    ``chance`` default to the machine's. With ``repairs`` a lost position does not refuse the start: the
    stream continues at a new slot, and the tables must be read again. ``confirmable`` is called in the
    engine's thread with an LSN that may be confirmed; the server gets the returned LSN, and the rest after
    its release.
    """

    def __init__(
        self,
        profile: Profile,
        host: Host,
        *,
        limits: Limits | None = None,
        ready_file: Path | None = None,
        clock: Clock | None = None,
        chance: RandomSource | None = None,
        repairs: bool = False,
        confirmable: Callable[[int], int] | None = None,
    ) -> None:
        self.profile, self.host = profile, host
        chance = chance or system_chance()
        self.run_id = new_identifier(chance)
        state = RunState(
            profile,
            host,
            limits or Limits(),
            clock or SystemClock(),
            chance,
            password=chosen_password(host),
            repairs=repairs,
            confirmable=confirmable,
        )
        self._run = PipelineRun(state, ready_file)

    @property
    def state(self) -> str:
        """Return the phase of the run, as observers get it (`on_state`)."""
        return self._run.state.entered[0]

    def status(self) -> PipelineStatus:
        """Return the status as an immutable object.

        Any thread may ask, before, during and after `run`; nothing is computed before.
        """
        return self._run.status()

    def watch(self) -> None:
        """Count the events of each table from now on.

        They are for readers of `PipelineStatus.tables`, and cost time per batch.
        """
        self._run.state.counts.watch_tables()

    @property
    def delivery(self) -> SinkWriter | None:
        return self._run.delivery

    def stop(self, within_s: float = math.inf) -> None:
        """Request a clean end: written batches are flushed and confirmed first.

        The caller ends the process if a call of a sink or hook is pending for ``within_s`` from now.
        """
        self._run.state.end_within(within_s)

    def pending_call(self, since: float) -> tuple[str, float] | None:
        """Return the pending call of a sink or hook and its seconds, None without one.

        Time counts from ``since`` of the monotonic clock at the earliest. Any thread may ask.
        """
        return self._run.pending_call(since)

    def reload(self, profile: Profile) -> ReloadResult:
        """Apply the reloadable properties of ``profile``, the same one read again.

        Return the applied properties, and those that need a new start. Any thread may call, before and
        during `run`.
        """
        found = changes(self.profile, profile)
        reloadable = {name: each for name, each in found.items() if each and each.reloadable}
        fields = [each.field for each in reloadable.values()]
        update = {field: getattr(profile.engine, field) for field in fields}
        engine = self.profile.engine.model_copy(update=update)
        self.profile = replace(self.profile, engine=engine)
        self._run.apply_profile(self.profile)
        return ReloadResult(
            applied=tuple(reloadable),
            restart=tuple(name for name in found if name not in reloadable),
        )

    def signal(
        self, kind: str, data: Mapping[str, object] | str = "", *, identifier: str = ""
    ) -> "Future[SignalAnswer]":
        """Send a signal of type ``kind`` (``execute-snapshot``, ``log``, …).

        It acts as a row of the signal table; ``data`` is an object or JSON text. Any thread may call,
        before and during `run`. The future has the answer when streaming continues and the request is
        stored: signals wait during the initial snapshot. It is done at the end of the run at the latest.
        A wait for it in the engine's own thread (a sink, an observer) never ends.
        """
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        made = identifier or new_identifier(self._run.state.chance)
        return self._run.channels.inbox.put(Signal(made, kind, text))

    def on_notification(self, call: Callable[[Notification], object]) -> None:
        """Call ``call`` with each notification, whatever channels the profile names.

        It runs in the engine's thread and must not wait; its errors are logged and stop nothing.
        """
        self._run.listeners.append(call)

    def run(self) -> None:
        """Capture until done.

        Raises: WaltapError if it cannot continue, or runs elsewhere.
        """
        run, state, name = self._run, self._run.state, self.profile.name
        run.begin()
        journal = f"journal of run {self.run_id}"
        self.host.register(run.journal, journal)
        try:
            with suppress(StopRequested):
                while not self._tenure_ended():
                    run.restart()
            state.enter("stopped", name)
        except BaseException as error:
            blamed = self.host.blamed(error)
            if isinstance(error, Exception):
                blamed = state_unusable(error, state.profile.state_dir) or blamed
            state.enter("failed", text_of(blamed))
            if isinstance(blamed, Exception):
                state.failed(blamed, retried=False)
            if blamed is error:
                raise
            raise blamed from error
        finally:
            self.host.unregister(journal)

    def _tenure_ended(self) -> bool:
        """Run while this process may; return whether the run has ended.

        False: the lease was lost and must be acquired again. Raises: WaltapError, StopRequested during the
        wait.
        """
        state = self._run.state
        try:
            with state.leadership:
                self._run_locked()
        except LeaseLost as lost:
            state.failed(lost, retried=True)
            state.stand_by(str(lost))
        except PipelineRunning as running:
            if not state.leadership.leased:
                raise
            state.stand_by(f"{running.problem}, without a lease")
            if not state.wait(POLL_S):
                raise StopRequested from running
        else:
            return True
        return state.stop.is_set()

    def _run_locked(self) -> None:
        run, state = self._run, self._run.state
        with PipelineLock(state.profile.state_dir, state.leadership) as lock, self._control():
            if state.entered[0] == "standby":
                state.enter("checking", "takes over")
            stages = self._stages()
            run.gaps.count()
            try:
                run.channels.open()
                run.guard.start()
                self._run_until_done(stages, lock.check)
            finally:
                run.guard.stop()
                run.channels.close()
                run.redeliveries.close("the pipeline has stopped")
                stages.dead_letters.close()
                if state.sink != "new":
                    with state.counts.calls.call("its end"):
                        stages.sink.close()

    def _stages(self) -> PipelineStages:
        state = self._run.state
        return PipelineStages(
            self.profile,
            self.host,
            run_id=self.run_id,
            stopping=state.ends,
            time_left=state.time_left,
            leadership=state.leadership,
            clock=state.clock,
            waits_for=state.counts.calls.wait_for,
            repairs=state.repairs,
        )

    def _control(self) -> ControlSocket:
        run, state = self._run, self._run.state
        control = ControlServer(
            self.signal,
            run.redeliveries.put,
            self.status,
            identifier=lambda: new_identifier(state.chance),
        )
        longest = 2 * self.profile.engine.signal_max_bytes + ENVELOPE_BYTES
        return ControlSocket(state.profile.state_dir / CONTROL, control.answer, longest=longest)

    def _run_until_done(self, stages: PipelineStages, may_write: Callable[[], None]) -> None:
        run, state, name = self._run, self._run.state, self.profile.name
        while True:
            try:
                state.leadership.check()
                SourceConnection(run, stages, may_write).go()
            except RedeliveryAsked:
                with state.counts.calls.call("its end"):
                    stages.sink.close()
                state.sink_failed()
                own = self._stages()
                try:
                    serve(
                        run.redeliveries,
                        Redelivery(own.dead_letters.store, own.branches, own.store, state.clock),
                    )
                finally:
                    own.close()
            except StopRequested:
                state.leadership.check()  # waits end, too, when the lease is lost
                return
            except OutputClosed as end:
                log.warning("%s: stopped", end.problem, extra={"pipeline": name})
                return
            except WaltapError as error:
                run.guard.check()  # the link broke because the slot was invalidated
                retries = state.retries_after(error)
                returned = isinstance(error, SinkReturned)  # which is no failure
                if not (returned or self._may_retry(error, retries)):
                    raise
                delivery_spent = run.delivery is not None and run.delivery.spent
                if isinstance(error, SinkError) or delivery_spent:
                    state.sink_failed()
                state.enter("reconnecting", str(error))
                state.failed(error, retried=True)
                state.counts.reconnects += 1
                if not (returned or retries.wait()):
                    if state.sink == "open":
                        return  # a stop: what was written is flushed and stored
                    raise
            else:
                return

    def _may_retry(self, error: WaltapError, retries: RetryBackoff) -> bool:
        """Return whether another connection may help.

        A first connection that fails is an error of setup. A lost one may come back, even before a
        delivery, as may a slot that the next connection makes again.
        """
        state = self._run.state
        state.leadership.check()  # whatever failed: another may run the pipeline by now
        if error.retry is RetryVerdict.NEVER or retries.spent:
            return False
        if error.retry is RetryVerdict.SAME_BATCH:  # while the sink opens, no batch can be repeated
            return state.sink == "unusable"
        comes_back = isinstance(error, ConnectionLost | SnapshotError) or bool(
            state.made.unreadable
        )
        return state.started or (state.linked and comes_back)
