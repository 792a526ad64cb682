"""A scenario: what a seed makes of pipeline and steps. Pure.

Every step carries a seed of its own and adapts to what it finds, so any subset of the steps is a
scenario again: that is how a failing one is shrunk.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.hunt.values import EVENT_SETTINGS


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    seed: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What runs: ``decoder`` names a row of `DECODERS`; ``filtered``: the publication names tables."""

    decoder: str
    sink: str
    settings: dict[str, Any]
    signals: bool
    filtered: bool
    snapshot: bool
    spark: bool = False
    """Whether Spark applies the change log at the end, and its tables are compared with the source's."""
    sender_timeout_ms: int = 0
    """The server's patience with a client that says nothing; 0: its default."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    pipeline: Pipeline
    steps: tuple[Step, ...]

    def keep(self, numbers: list[int]) -> "Scenario":
        return replace(self, steps=tuple(self.steps[n] for n in numbers))


PGOUTPUT: dict[str, Any] = {"plugin.name": "pgoutput"}

DECODERS: dict[str, dict[str, Any]] = {
    "pgoutput": PGOUTPUT,
    "pgoutput-streaming": {**PGOUTPUT, "pgoutput.streaming": "on"},
    "pgoutput-two-phase": {**PGOUTPUT, "pgoutput.two_phase": True},
    "pgoutput-prepare": {**PGOUTPUT, "pgoutput.two_phase": True, "two.phase.policy": "prepare"},
    "wal2json-2": {"plugin.name": "wal2json"},
    "wal2json-1": {"plugin.name": "wal2json", "wal2json.format-version": "1"},
    "wal2json-chunks": {
        "plugin.name": "wal2json", "wal2json.format-version": "1", "wal2json.write-in-chunks": True,
    },
    "decoderbufs": {"plugin.name": "decoderbufs"},
}  # fmt: skip
WEIGHTS = (5, 3, 2, 2, 2, 1, 1, 2)

STEPS: dict[str, float] = {
    # work on the source
    "work": 12, "bulk": 3, "create": 3, "burst": 2, "ddl": 6, "change_then_ddl": 3, "truncate": 1, "swap": 1,
    "prepare": 2, "decide": 2, "open": 2, "undone": 2, "storm": 0.7, "large": 0.5,
    # the engine
    "start": 6, "stop": 2, "kill": 3, "catch_up": 2, "window": 1, "pause": 1,
    "two_phase": 1, "rotate": 0.5, "server": 0.6, "move": 0.6, "settings": 1.2, "publication": 0.5, "anew": 0.6,
    # what may happen to it
    "cut": 1.5, "cut_later": 1, "hold": 0.5, "fsync": 1, "full": 1, "close_fails": 0.7, "disk": 0.4,
    # signals
    "snapshot": 3, "signal": 1, "bad_signal": 0.7,
}  # fmt: skip


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(seed)
    pipeline = _pipeline(random)
    if pipeline.sink == "changelog":  # a JVM is slow: now and then
        pipeline = replace(pipeline, spark=Random(f"spark {seed}").random() < 0.15)
    steps = ["create"] * random.randrange(1, 6) + ["work"] * random.randrange(3)
    names, weights = zip(*STEPS.items(), strict=True)
    early = ["window"] if random.random() < 0.4 else ["start"]
    steps += early if random.random() < 0.8 else []
    steps += random.choices(names, weights, k=random.randrange(4, 22))
    if pipeline.spark:
        for _ in range(Random(f"kills {seed}").randrange(3)):
            steps.insert(random.randrange(len(steps) // 2, len(steps)), "spark")
    if random.random() < 0.12:
        steps += ["two_phase", "decide", "work"]
    return Scenario(seed, pipeline, tuple(Step(kind, random.getrandbits(32)) for kind in steps))


def _pipeline(random: Random) -> Pipeline:
    decoder = random.choices(list(DECODERS), WEIGHTS)[0]
    sink = random.choices(("jsonl", "changelog"), (3, 2))[0]
    filtered = random.random() < 0.3 and decoder.startswith("pgoutput")
    signals = random.random() < 0.5
    snapshot = random.random() < 0.9
    settings: dict[str, Any] = {
        **DECODERS[decoder],
        **EVENT_SETTINGS,
        "publication.autocreate.mode": "filtered" if filtered else "all_tables",
        "publication.keyless.tables": random.choice(("publish", "publish", "inserts", "refuse"))
        if filtered
        else "publish",
        "message.prefix.exclude.list": "hunt,pad",
        "snapshot.mode": random.choice(("initial", "initial", "when_needed"))
        if snapshot
        else "no_data",
        "snapshot.fetch.size": random.choice((1, 10, 1000)),
        "snapshot.locking.mode": random.choice(("none", "none", "shared")),
        "max.batch.size": random.choice((1, 7, 100, 8192)),
        "offset.flush.interval.ms": random.choice((0, 20, 1000)),
        "status.update.interval.ms": random.choice((50, 1000, 10000)),
        "waltap.spill.memory.bytes": random.choice((1, 50_000, 67_108_864)),
        "heartbeat.interval.ms": random.choice((0, 0, 100)),
        "retriable.restart.connector.wait.ms": 100,
    }
    if signals:
        settings |= {
            "signal.data.collection": "public.signals",
            "incremental.snapshot.chunk.size": random.choice((1, 3, 50, 1024)),
            "incremental.snapshot.watermarking.strategy": random.choice(
                ("insert_insert", "insert_delete")
            ),
        }
    if sink == "jsonl" and random.random() < 0.5:
        settings |= {"key.converter.schemas.enable": True, "value.converter.schemas.enable": True}
    if snapshot and sink == "jsonl" and decoder != "pgoutput-prepare" and random.random() < 0.06:
        settings["snapshot.mode"] = "always"
    timeout = 1500 if random.random() < 0.1 else 0
    return Pipeline(decoder, sink, settings, signals, filtered, snapshot, sender_timeout_ms=timeout)
