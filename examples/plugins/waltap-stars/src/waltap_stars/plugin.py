"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import TransformSpec
from waltap_stars.transform import StarsProperties, new_transform

WALTAP_API = 1


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """Contribute the transform: ``[[transforms]] type = "stars"`` in a profile."""
    yield TransformSpec(
        name="stars",
        summary="Writes stars in place of the text of some columns.",
        properties=StarsProperties,
        factory=new_transform,
    )
