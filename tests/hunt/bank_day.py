"""How the banks of the hunt are run by hand: two servers for a while, and a line that shows."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from tests.harness.servers.postgres import Cluster, Database


class Service(Protocol):
    """The server that the bank's books are kept on."""

    def remove(self) -> None:
        """End it, and remove what it kept."""


Kept = TypeVar("Kept", bound=Service)
Played = tuple[str, list[str]]
"""What was done, in words, and what is not as promised."""


def run_bank(
    description: str,
    counts: dict[str, int],
    keep: Callable[[], Kept],
    play: Callable[[argparse.Namespace, Database, Kept, Path], Played],
    *,
    right: str,
) -> None:
    """Play with ``counts``, options and their defaults, and a seed; exit with 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    began = time.monotonic()
    server, kept = Cluster.create(), keep()
    with tempfile.TemporaryDirectory(prefix="waltap-bank-") as folder:
        try:
            done, wrong = play(given, server.create_database("bank"), kept, Path(folder))
        finally:
            kept.remove()
            server.remove()
    took = f"{time.monotonic() - began:.0f} s"
    print(f"seed {given.seed}: {done}, {took}: {'; '.join(wrong) or right}")
    sys.exit(bool(wrong))
