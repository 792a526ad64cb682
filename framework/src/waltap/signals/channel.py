"""The contract of a signal channel: where signals come from."""

from typing import Protocol

from waltap.signals.signal import Signal

__all__ = ["SignalChannel"]


class SignalChannel(Protocol):
    """A place that signals arrive at; what the factory of a `SignalChannelSpec` returns.

    Polled between batches, in the engine's thread, every ``signal.poll.interval.ms``.
    """

    def poll(self) -> list[Signal]:
        """Return the signals that have arrived since the last call, in order, each once; at once.

        What cannot be read as a signal is left out and logged: a typing error in a signal must not
        stop a pipeline. Raises: WaltapError when the channel itself is gone.
        """

    def close(self) -> None:
        """Release everything; may be called twice."""
