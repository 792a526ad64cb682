"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CheckSpec
from waltap_wal_limit.check import check

WALTAP_API = 1


@hookimpl
def register_checks() -> Iterable[CheckSpec]:
    """Contribute the check."""
    yield CheckSpec(name="wal-limit", summary="What a slot may keep of the WAL.", factory=check)
