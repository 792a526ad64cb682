"""Define the contract of signal channels."""

from typing import Protocol

from waltap.ports.signals.signal import Signal

__all__ = ["SignalChannel"]


class SignalChannel(Protocol):
    """A source of signals, made by a `SignalChannelSpec`.

    The engine's thread polls it between batches, every ``signal.poll.interval.ms``.
    """

    def poll(self) -> list[Signal]:
        """Return the new signals in order, without waiting.

        Each signal comes once. The channel logs and skips invalid signals, because a misspelled
        signal must not stop a pipeline. Raises: WaltapError when the channel itself is gone.
        """

    def close(self) -> None:
        """Release resources; may be called twice."""
