"""Time, waiting and chance, handed to whoever needs them.

The engine asks nothing else for the time: with other objects in their place (`waltap_testing.simulation`)
hours of a pipeline pass in milliseconds, and the same run can be had again.
"""

import time
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Protocol
from uuid import UUID

__all__ = [
    "Clock",
    "RandomSource",
    "SystemClock",
    "new_identifier",
    "processor_time",
    "system_chance",
]

LOOK_S = 0.05


class Clock(Protocol):
    """What time it is, and how to wait."""

    def monotonic(self) -> float:
        """Return seconds since some instant; they never go back."""

    def time_ns(self) -> int:
        """Return the time of day, ns since 1970 UTC."""

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        """Wait, at most ``seconds``; tell whether ``stopping`` ended it. It is asked at least once, and
        often enough for people who wait for a program's end."""


class RandomSource(Protocol):
    """Where chance comes from; `random.Random` with a seed gives the same again."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between the two."""

    def getrandbits(self, k: int, /) -> int:
        """Return ``k`` bits."""


class SystemClock:
    """The machine's."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not stopping():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK_S))
        return True


def processor_time() -> float:
    """Return seconds that processors have worked for this thread. What bounds work by them does not end
    sooner on a busy machine, where the thread waits for its turn."""
    return time.thread_time()


def system_chance() -> Random:
    """Return chance that nobody can foretell."""
    return SystemRandom()


def new_identifier(chance: RandomSource) -> str:
    """Return a random UUID (version 4)."""
    return str(UUID(int=chance.getrandbits(128), version=4))
