"""Define the contract of signal actions in plugins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waltap.ports.signals.signal import Signal

__all__ = ["SignalCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCall:
    """One signal for an action, and access to its pipeline."""

    pipeline: str
    signal: Signal
    # the parsed data: untrusted content of at most ``waltap.signal.max.bytes``
    arguments: Mapping[str, object]
    # the last delivered position as text
    position: str
    # sends a notification (kind, members) with the signal's id; the aggregate type is its type
    notify: Callable[..., None]
    # stops the pipeline as `Engine.stop` does
    stop: Callable[[], None]
