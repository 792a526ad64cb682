"""Hook implementations of the transforms."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import TransformSpec


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """Contribute the transforms."""
    from waltap_transforms.connect import CONNECT
    from waltap_transforms.debezium import DEBEZIUM

    return (*CONNECT, *DEBEZIUM)
