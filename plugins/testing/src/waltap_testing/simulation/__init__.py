"""A whole pipeline without a machine: the real engine on a clock that jumps, a server of transactions made
by hand, and a destination in memory. Hours pass in milliseconds, and the same run can be had again.

    pipeline = SimulatedPipeline(tmp_path)
    pipeline.source.insert(at=2.0, rows=3)
    pipeline.source.cut(at=3600.0)
    pipeline.run(max_seconds=7200.0)
    assert len(pipeline.destination.durable) == 3

It is for what depends on time, waits, retries and failures. It is no database: what a server really
says, tests of the connector find out on a real one.
"""

from waltap_testing.simulation.clock import TimeStandsStill, VirtualClock
from waltap_testing.simulation.destination import SimulatedDestination
from waltap_testing.simulation.pipeline import SimulatedPipeline
from waltap_testing.simulation.source import SimulatedSource

__all__ = [
    "SimulatedDestination",
    "SimulatedPipeline",
    "SimulatedSource",
    "TimeStandsStill",
    "VirtualClock",
]
