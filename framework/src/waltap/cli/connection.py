"""A connector by itself, for commands that look at the database and run no pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.pipeline.setup.build import PipelineStages
    from waltap.plugins.host import Host
    from waltap.ports.source.connector import Connector

__all__ = ["connected"]


@contextmanager
def connected(profile: "Profile", host: "Host") -> "Iterator[tuple[Connector, PipelineStages]]":
    """Connect to the profile's database; nothing is changed there. Raises: WaltapError."""
    from waltap.pipeline.setup.build import build
    from waltap.ports.source.connector import MadeByRun

    stages = build(profile, host, run_id="")
    connector = stages.open_connector(MadeByRun())
    try:
        yield connector, stages
    finally:
        connector.close()
