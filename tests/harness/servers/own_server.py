"""A PostgreSQL server of a fixture's own, or a skip that says why there is none."""

import contextlib
from collections.abc import Callable, Iterator

from tests.harness.servers.postgres import Cluster, Unavailable
from tests.harness.servers.requirement import missing


@contextlib.contextmanager
def own_server(make: Callable[..., Cluster] = Cluster.create, **settings: str) -> Iterator[Cluster]:
    """Give a server that is removed at the end; ``make`` is `Cluster.create_newest` for that of the newest
    PostgreSQL, ``settings`` go to its configuration."""
    try:
        made = make(**settings)
    except Unavailable as reason:
        missing(str(reason))
    try:
        yield made
    finally:
        made.remove()
