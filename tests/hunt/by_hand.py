"""How the programs of the hunt are run by hand: a server for a while, a seed, and a line that shows."""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from tests.harness.servers.postgres import Cluster

Played = tuple[str, list[str]]
"""What was done, in words, and what is not as promised."""


class Removable(Protocol):
    """A server of one program."""

    def remove(self) -> None:
        """End it, and remove what it kept."""


Server = TypeVar("Server", bound=Removable)


@contextlib.contextmanager
def lasting(server: Server) -> Iterator[Server]:
    """Remove ``server`` when the block ends."""
    try:
        yield server
    finally:
        server.remove()


def run_by_hand(
    description: str,
    counts: dict[str, float],
    play: Callable[[argparse.Namespace, Cluster, Path], Played],
    *,
    right: str,
    **settings: str,
) -> None:
    """Play with ``counts``, options and their defaults, and a seed; exit with 1 where something is wrong.

    ``settings`` are those of the server.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--keep", type=Path, help="a folder for what was delivered and logged")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="waltap-hunt-") as scratch,
        lasting(Cluster.create(**settings)) as server,
    ):
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        done, wrong = play(given, server, folder)
    print(f"{done}, {time.monotonic() - began:.0f} s: {'; '.join(wrong) or right}")
    sys.exit(bool(wrong))
