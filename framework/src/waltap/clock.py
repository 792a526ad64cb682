"""Provide time, waiting and randomness to the engine.

The engine uses no other clock. A simulation (`waltap_testing.simulation`) replaces these objects: hours of
a pipeline pass in milliseconds, and a run can be repeated exactly.
"""

import time
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Protocol
from uuid import UUID

# How late a stop request may be noticed, in seconds.
POLL_S = 0.05


class Clock(Protocol):
    """A source of time that can wait."""

    def monotonic(self) -> float:
        """Return seconds since a fixed instant; they never go back."""

    def time_ns(self) -> int:
        """Return the time of day, ns since 1970 UTC."""

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        """Wait at most ``seconds``; return whether ``stopping`` ended the wait.

        ``stopping`` is called at least once, and often enough for people who wait for a program's end.
        """


class RandomSource(Protocol):
    """A source of randomness; a seeded `random.Random` is repeatable."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between ``a`` and ``b``."""

    def getrandbits(self, k: int, /) -> int:
        """Return ``k`` bits."""


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)

    def wait(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not stopping():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            # Short sleeps: ``stopping`` may become true at any time.
            time.sleep(min(remaining, POLL_S))
        return True


def boot_seconds() -> float:
    """Return a clock that also counts while the machine sleeps."""
    # Only some systems have such a clock.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def processor_time() -> float:
    """Return this thread's processor time in seconds.

    A limit in processor time does not end sooner on a busy machine, where the thread waits its turn.
    """
    return time.thread_time()


def system_chance() -> Random:
    """Return an unpredictable random source."""
    return SystemRandom()


def new_identifier(chance: RandomSource) -> str:
    """Return a random UUID (version 4)."""
    return str(UUID(int=chance.getrandbits(128), version=4))
