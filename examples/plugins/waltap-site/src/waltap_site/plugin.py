"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import RecordTransformSpec, TransformSpec
from waltap_site.transform import SiteProperties, new_transform

WALTAP_API = 1


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """Contribute the transform: ``transforms.x.type=site``, or ``[[transforms]] type = "site"``."""
    yield RecordTransformSpec(
        name="site",
        summary="Adds a field with a text to the values of records.",
        properties=SiteProperties,
        factory=new_transform,
    )
