"""Run a whole pipeline on a simulated clock.

The engine is the real one. The clock jumps, the server is a list of hand-made transactions, and
the sink keeps rows in memory. Simulated hours take milliseconds, and a run with the same seed
repeats exactly.

    pipeline = SimulatedPipeline(tmp_path)
    pipeline.source.insert(at=2.0, rows=3)
    pipeline.source.cut(at=3600.0)
    pipeline.run(max_seconds=7200.0)
    assert len(pipeline.destination.durable) == 3

Use it to test time, waits, retries and failures. It does not imitate a database: test a connector
against a real server.
"""

from waltap_testing.simulation.clock import VirtualClock
from waltap_testing.simulation.destination import SimulatedDestination
from waltap_testing.simulation.pipeline import SimulatedPipeline
from waltap_testing.simulation.source import SimulatedSource

__all__ = ["SimulatedDestination", "SimulatedPipeline", "SimulatedSource", "VirtualClock"]
