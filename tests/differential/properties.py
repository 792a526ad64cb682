"""Every property that Debezium's PostgreSQL connector has: recorded from Debezium itself."""

import subprocess
from pathlib import Path

from tests.differential.engines import PEER

GOLDEN = Path(__file__).parent / "debezium_properties.json"
"""Written by ``python -m tests.differential properties``: the ConfigDef of the connector (connector), the ConfigDef of
Kafka Connect's source connectors (connect), and the fields that the classes of connector and engine declare
(fields), each with its default."""

SECONDS = 120.0


def asked() -> str:
    """Return what Debezium answers. Raises: subprocess errors."""
    done = subprocess.run(
        [PEER, "--properties"], stdout=subprocess.PIPE, check=True, timeout=SECONDS
    )
    return done.stdout.decode()
