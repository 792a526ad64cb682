"""What the check of a plugin gets."""

from dataclasses import dataclass

from waltap.config.profile import Profile
from waltap.offsets.offset import Offset
from waltap.source.connector import Connector

__all__ = ["CheckContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """What a plugin's check may look at before a start; it changes nothing.

    ``profile`` has every property of the pipeline. ``connector`` is connected; `Connector.query` reads
    from the server. ``offset`` is the stored one, None at a first start.
    """

    profile: Profile
    connector: Connector
    offset: Offset | None
