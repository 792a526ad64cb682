"""When the guardian warns, and when it acts. Sans-IO."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ThresholdCrossing", "WalThresholds"]

SLACK = 0.05
"""So much below a threshold its next crossing counts again: what is kept goes up and down."""


@dataclass(frozen=True, slots=True)
class ThresholdCrossing:
    """What a look brought. ``warns``: the highest threshold that was passed anew, None for none;
    ``acts``: the share is at or above that of acting; ``calms``: it is below every threshold again."""

    warns: float | None
    acts: bool
    calms: bool


class WalThresholds:
    """Remembers which thresholds were passed. ``warn_at`` are shares of a limit, ``act_at`` is one."""

    def __init__(self, warn_at: Sequence[float], act_at: float) -> None:
        self._act_at = act_at
        self._all = sorted({*warn_at, act_at})
        self._passed: set[float] = set()

    def look(self, used: float) -> ThresholdCrossing:
        """Take note of the share that is used now."""
        before = set(self._passed)
        new = {each for each in self._all if used >= each} - before
        self._passed = {each for each in before if used >= each - SLACK} | new
        return ThresholdCrossing(
            warns=max(new, default=None),
            acts=used >= self._act_at,
            calms=bool(before) and not self._passed,
        )

    @property
    def level(self) -> str:
        """Return ok, warned, or acted."""
        if not self._passed:
            return "ok"
        return "acted" if self._act_at in self._passed else "warned"
