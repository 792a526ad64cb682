"""Receive signals from channels, and send notifications to others."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from waltap.base.plugin_errors import interrupts, part_of, usable
from waltap.base.text import cut, duration, in_brief
from waltap.changes.transactions.transaction import Notification
from waltap.clock import new_identifier
from waltap.errors import WaltapError
from waltap.pipeline.runtime.run_state import RunState
from waltap.ports.notifications.channel import LossCounting, NotificationChannel
from waltap.ports.signals.inbox import EngineInbox, SignalAnswer, begun
from waltap.ports.signals.signal import (
    SNAPSHOTS,
    ConfirmedChannel,
    PartlyIgnored,
    Signal,
    SignalChannel,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

SINK = "sink"
"""This channel's notifications are records of the sink."""

INITIAL, INCREMENTAL = "Initial Snapshot", "Incremental Snapshot"
SIGNAL, SLOT = "Signal", "Slot"
"""Aggregate types of waltap, not of Debezium."""


class SignalActor(Protocol):
    """Acts on signals and stores them."""

    def take(self, signal: Signal, *, explain: bool = False) -> str:
        """Return the reason for ignoring it, or "".

        With ``explain`` that is also the reason for ignoring a part (`PartlyIgnored`).
        """

    def has_stored(self, signals: Sequence[Signal]) -> bool:
        """Return whether a later run knows these signals and their requests."""

    def forget_signals(self, repeated: Collection[str]) -> None:
        """Forget all signals but these fingerprints: a channel may repeat them."""


@dataclass(slots=True, eq=False)
class PendingSignal:
    """A signal until it is stored and its channel has forgotten it."""

    # "": it was sent to the inbox
    channel: str
    signal: Signal
    # waits for the answer
    asked: Future[SignalAnswer] | None = None
    acted: bool = False
    reason: str = ""

    @property
    def accepted(self) -> bool:
        return not self.reason or isinstance(self.reason, PartlyIgnored)

    @property
    def must_be_stored(self) -> bool:
        """Return whether a crash before the next store would lose a request."""
        return self.acted and self.accepted and self.signal.kind in SNAPSHOTS

    def answer(self) -> None:
        """Answer who asked, unless that was done."""
        asked, self.asked = self.asked, None
        if asked is not None and begun(asked):
            identifier, reason = self.signal.identifier, str(self.reason)
            asked.set_result(SignalAnswer(identifier, accepted=self.accepted, reason=reason))


class PipelineChannels:
    """Poll the signal channels of a profile, and send its notifications.

    The channels last over the reconnects of a run, as do signals that are not stored. A failing
    channel does not end the run: a new failure is logged. ``inbox`` takes signals from any thread;
    ``listeners`` get each notification, too. ``pending`` holds the notifications for the sink's records.
    """

    def __init__(self, state: RunState, listeners: list[Callable[[Notification], object]]) -> None:
        self._state, self._clock = state, state.clock
        self.pending: deque[Notification] = deque()
        named = state.profile.engine.notification_channels
        self._in_sink = SINK in map(str.casefold, named)
        self.listeners = listeners
        self._signals: dict[str, SignalChannel] = {}
        self._notifications: dict[str, NotificationChannel] = {}
        self.inbox = EngineInbox[Signal, SignalAnswer](
            lambda signal, why: SignalAnswer(signal.identifier, accepted=False, reason=why)
        )
        # In the order of their coming.
        self._pending: list[PendingSignal] = []
        self._actor: SignalActor | None = None
        # By channel without a successful poll: fingerprints of the signals that a run before acted on.
        self._known: dict[str, list[str]] = {}
        self._warned: dict[str, str] = {}
        self._lost = 0
        self._sending = threading.RLock()  # the slot monitor's thread sends, too
        self._polled: float | None = None

    def open(self) -> None:
        """Open the channels. Raises: the errors of their factories."""
        for signals in self._state.profile.signal_channels:
            self._signals[signals.spec.name] = part_of(
                signals.spec.factory, SignalChannel, signals.properties
            )
        for sent in self._state.profile.notification_channels:
            self._notifications[sent.spec.name] = part_of(
                sent.spec.factory, NotificationChannel, sent.properties
            )
        self._polled = None  # another process may have led since the last time

    def close(self) -> None:
        """Close the channels, and answer waiting signals; may be called twice."""
        ended = "the pipeline has ended"
        self.inbox.close(ended)
        for pending in self._pending:
            pending.reason = ended
            pending.answer()
        self._pending = []
        for name, signals in self._signals.items():
            self._try(name, signals.close)
        with self._sending:
            for name, notified in self._notifications.items():
                self._try(name, notified.close)
            self._lost, self._signals, self._notifications = self.lost, {}, {}

    # --- signals ------------------------------------------------------------------------------

    def resume(self, actor: SignalActor, stored: Collection[str]) -> None:
        """Let ``actor`` act on the signals of a new connection.

        Its offset has the ``stored`` ones (`Signal.fingerprint`). Others are acted on once more.
        """
        self._actor = actor
        if self._polled is None:
            self._known = {name: [*stored] for name in self._signals}
        left = Counter(stored)
        for pending in filter(lambda each: each.must_be_stored, self._pending):
            left[pending.signal.fingerprint] -= 1
            pending.acted = left[pending.signal.fingerprint] >= 0

    def pause(self) -> None:
        """Have signals wait until `resume`."""
        self._actor = None

    def poll_if_due(self, now: float) -> None:
        """Process waiting signals in order, and poll each channel once a period.

        The inbox is polled at every call, a `ConfirmedChannel` once its last signals are confirmed. A
        signal that cannot be read now waits for the next connection.
        """
        actor = self._actor
        assert actor is not None
        while (given := self.inbox.take()) is not None:
            signal, future = given
            self._pending.append(PendingSignal("", signal, future))
        period_s = self._state.profile.engine.signal_poll_interval_ms / 1000
        due = self._polled is None or now - self._polled >= period_s
        if due:
            self._polled = now
            unconfirmed = {pending.channel for pending in self._pending}
            for name, channel in self._signals.items():
                if not (name in unconfirmed and isinstance(channel, ConfirmedChannel)):
                    self._poll(name, channel)
        if not (due or self._pending):
            return
        for pending in [each for each in self._pending if not each.acted]:
            due, asked = True, pending.asked
            if asked is not None and not begun(asked):
                self._pending.remove(pending)
                continue
            pending.reason = actor.take(pending.signal, explain=asked is not None)
            pending.acted = True
            if not pending.must_be_stored:
                pending.answer()
        if due or any(pending.asked for pending in self._pending):
            self.confirm()

    def _poll(self, name: str, channel: SignalChannel) -> None:
        polled = self._try(name, partial(_polled, channel))
        if polled is None:
            return
        known = self._known.pop(name, [])
        for signal in polled:
            acted = signal.fingerprint in known
            if acted:
                known.remove(signal.fingerprint)
                log.info("signal %s is known: a run before acted on it", cut(signal.identifier))
            self._pending.append(PendingSignal(name, signal, acted=acted))

    def confirm(self) -> None:
        """Answer and confirm the signals if they are stored, then forget them."""
        actor, pending = self._actor, self._pending
        asking = [each.signal for each in pending if each.must_be_stored]
        if actor is None or not actor.has_stored(asking):
            return
        for each in pending:
            each.answer()
        for name in {each.channel for each in pending}:
            channel = self._signals.get(name)
            if not isinstance(channel, ConfirmedChannel) or self._try(
                name, partial(_confirmed, channel)
            ):
                self._pending = [each for each in self._pending if each.channel != name]
        repeated = {each.signal.fingerprint for each in self._pending}
        actor.forget_signals(repeated.union(*self._known.values()))

    # --- notifications ------------------------------------------------------------------------

    @property
    def notified(self) -> bool:
        return bool(self._notifications or self.listeners or self._in_sink)

    @property
    def lost(self) -> int:
        """Return the number of lost notifications. Any thread may ask."""
        channels = tuple(self._notifications.values())
        return self._lost + sum(c.lost for c in channels if isinstance(c, LossCounting))

    def notify(self, aggregate: str, kind: str, identifier: str = "", **data: str) -> None:
        """Send a notification with Debezium's members.

        ``identifier`` is the signal's, else a new one. Any thread may call; channels get one notification
        at a time.
        """
        if not self.notified:
            return
        notification = Notification(
            identifier=identifier or new_identifier(self._state.chance),
            aggregate_type=aggregate,
            kind=kind,
            additional_data={"connector_name": self._state.profile.capture.topic_prefix, **data},
            timestamp=self._state.now_ms(),
        )
        with self._sending:
            for name, channel in self._notifications.items():
                if not self._try(name, partial(_sent, channel, notification)):
                    self._lost += 1
            if self._in_sink:
                self.pending.append(notification)
            for listener in self.listeners:
                self._try("of Engine.on_notification", partial(listener, notification))

    def _try(self, name: str, call: Callable[[], T]) -> T | None:
        began = self._clock.monotonic()
        try:
            with self._state.host.calling(f"channel {name}"):
                answer = call()
        except BaseException as error:  # a channel may be a stranger's; none stops a pipeline
            if interrupts(error):
                raise
            blamed = self._state.host.blamed(error)
            problem = str(blamed) if isinstance(blamed, WaltapError) else in_brief(error)
            if self._warned.get(name) != problem:
                log.warning(
                    "channel %s: %s", name, problem, extra={"pipeline": self._state.profile.name}
                )
            self._warned[name] = problem
            return None
        finally:
            took = self._clock.monotonic() - began
            if took * 1000 >= self._state.profile.engine.stall_ms:
                extra = {"pipeline": self._state.profile.name}
                log.warning(
                    "channel %s: the pipeline waited %s for it", name, duration(took), extra=extra
                )
        self._warned.pop(name, None)
        return answer


def _polled(channel: SignalChannel) -> list[Signal] | None:
    given = usable(channel.poll(), (Iterable, type(None)), channel, "poll")
    if given is None:
        return None
    signals = [usable(signal, Signal, channel, "poll") for signal in given]
    for signal in signals:
        for text in (signal.identifier, signal.kind, signal.data):
            usable(text, str, channel, "poll")
    return signals


def _confirmed(channel: ConfirmedChannel) -> bool:
    channel.confirm()
    return True


def _sent(channel: NotificationChannel, notification: Notification) -> bool:
    channel.send(notification)
    return True
