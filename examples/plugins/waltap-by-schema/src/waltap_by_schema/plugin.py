"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import TopicNamingSpec
from waltap_by_schema.naming import naming

WALTAP_API = 1


@hookimpl
def register_topic_naming() -> Iterable[TopicNamingSpec]:
    """Contribute the strategy: ``topic.naming.strategy=by-schema``."""
    yield TopicNamingSpec(
        name="by-schema", summary="prefix.schema: one topic per schema", factory=naming
    )
