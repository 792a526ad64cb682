"""Define the context of a plugin's check."""

from dataclasses import dataclass

from waltap.config.profile import Profile
from waltap.ports.offsets.offset import Offset
from waltap.ports.source.connector import Connector


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """The state that a plugin's check may read before a start."""

    # Every property of the pipeline.
    profile: Profile
    # Connected; `Connector.query` reads from the server. The check must change nothing.
    connector: Connector
    # The stored offset, None at a first start.
    offset: Offset | None
