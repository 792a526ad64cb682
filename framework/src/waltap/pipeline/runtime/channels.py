"""The channels of a run: signals that come by other ways than the stream, and where notifications go."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from waltap.changes.transactions.notification import Notification
from waltap.clock import Clock, RandomSource, new_identifier
from waltap.config.profile import Profile
from waltap.plugins.host import Host
from waltap.ports.notifications.channel import LossCounting
from waltap.ports.signals.inbox import SignalAnswer, SignalInbox, begun
from waltap.ports.signals.signal import Signal

if TYPE_CHECKING:
    from waltap.ports.notifications.channel import NotificationChannel
    from waltap.ports.signals.signal import SignalChannel

__all__ = ["INCREMENTAL", "INITIAL", "SIGNAL", "SLOT", "PipelineChannels"]

log = logging.getLogger(__name__)

T = TypeVar("T")

SINK = "sink"
"""The channel whose notifications are records of the sink."""

INITIAL, INCREMENTAL = "Initial Snapshot", "Incremental Snapshot"
SIGNAL, SLOT = "Signal", "Slot"
"""Aggregate types; these two are ours."""


class PipelineChannels:
    """Polls the signal channels of a profile, and sends notifications to the others.

    They last over the reconnects of a run, as do the signals that were polled and not acted on yet. No
    failure of a channel ends the run: each is told in the log, again when it has become another.
    ``inbox`` takes signals from any thread, whatever channels the profile names; ``listeners`` are called
    with each notification, too. ``pending`` has those that the sink is to get among its records.
    """

    def __init__(
        self,
        profile: Profile,
        host: Host,
        clock: Clock,
        chance: RandomSource,
        listeners: list[Callable[[Notification], object]],
    ) -> None:
        self._profile, self._host, self._clock, self._chance = profile, host, clock, chance
        self.pending: deque[Notification] = deque()
        self._in_sink = SINK in map(str.casefold, profile.engine.notification_channels)
        self.listeners = listeners
        self._signals: dict[str, SignalChannel] = {}
        self._notifications: dict[str, NotificationChannel] = {}
        self.inbox = SignalInbox()
        self._waiting: deque[tuple[Signal, Future[SignalAnswer] | None]] = deque()
        self._told: dict[str, str] = {}
        self._lost = 0
        self._sending = threading.RLock()  # the guardian's thread tells, too
        self._polled: float | None = None

    def obey(self, profile: Profile) -> None:
        """Go by a profile that was read again."""
        self._profile = profile

    def open(self) -> None:
        """Make the channels. Raises: what their factories raise."""
        for signals in self._profile.signal_channels:
            self._signals[signals.spec.name] = signals.spec.factory(signals.properties)
        for sent in self._profile.notification_channels:
            self._notifications[sent.spec.name] = sent.spec.factory(sent.properties)
        self._polled = None

    def close(self) -> None:
        """Close them all, and answer the signals that were not acted on; may be called twice."""
        ended = "the pipeline has ended"
        self.inbox.close(ended)
        while self._waiting:
            signal, asked = self._waiting.popleft()
            _answer(signal, asked, ended)
        for name, signals in self._signals.items():
            self._try(name, signals.close)
        with self._sending:
            for name, notified in self._notifications.items():
                self._try(name, notified.close)
            self._lost, self._signals, self._notifications = self.lost, {}, {}

    # --- signals ------------------------------------------------------------------------------

    def poll_if_due(self, now: float, act: Callable[[Signal], str]) -> None:
        """Ask every channel when the period is over, the inbox always; ``act`` on each signal, in order:
        it returns why a signal is left out, "" for one that is not.

        A signal on which `act` raises waits for the next connection.
        """
        while (given := self.inbox.take()) is not None:
            self._waiting.append(given)
        period_s = self._profile.engine.signal_poll_interval_ms / 1000
        if self._polled is None or now - self._polled >= period_s:
            self._polled = now
            for name, channel in self._signals.items():
                self._waiting.extend((s, None) for s in self._try(name, channel.poll) or ())
        while self._waiting:
            signal, asked = self._waiting[0]
            if asked is None or begun(asked):
                _answer(signal, asked, act(signal))
            self._waiting.popleft()

    # --- notifications ------------------------------------------------------------------------

    @property
    def notified(self) -> bool:
        """Tell whether anybody gets notifications."""
        return bool(self._notifications or self.listeners or self._in_sink)

    @property
    def lost(self) -> int:
        """Return how many notifications a channel did not take; any thread may ask."""
        channels = tuple(self._notifications.values())
        return self._lost + sum(c.lost for c in channels if isinstance(c, LossCounting))

    def tell(self, aggregate: str, kind: str, identifier: str = "", **data: str) -> None:
        """Send a notification; ``identifier`` is the signal's, else one is made. Members as Debezium's.
        Of one call at a time the channels hear, whichever thread it comes from."""
        if not self.notified:
            return
        notification = Notification(
            identifier=identifier or new_identifier(self._chance),
            aggregate_type=aggregate,
            kind=kind,
            additional_data={"connector_name": self._profile.capture.topic_prefix, **data},
            timestamp=self._clock.time_ns() // 1_000_000,
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
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - a channel may be a stranger's; none stops a pipeline
            told = str(self._host.blamed(error))
            if self._told.get(name) != told:
                log.warning("channel %s: %s", name, told, extra={"pipeline": self._profile.name})
            self._told[name] = told
            return None
        self._told.pop(name, None)
        return answer


def _sent(channel: "NotificationChannel", notification: Notification) -> bool:
    channel.send(notification)
    return True


def _answer(signal: Signal, asked: "Future[SignalAnswer] | None", why: str) -> None:
    if asked is not None and begun(asked):
        asked.set_result(SignalAnswer(signal.identifier, taken=not why, reason=why))
