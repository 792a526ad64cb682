"""What Java's transforms answered when they were asked: the questions of one seed."""

from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.jsonl")
SOURCE = "connect-transforms 4.3.0 (Apache Kafka), by benchmarks/peer/Transforms.java"
SEED, EACH = "recorded", 12
