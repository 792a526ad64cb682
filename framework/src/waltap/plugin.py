"""Hook implementations of the framework itself, and nothing else."""

from collections.abc import Iterable

from waltap.hookspecs import hookimpl
from waltap.render.topic_naming import TOPIC_NAMING
from waltap.specs import TopicNamingSpec


@hookimpl
def register_topic_naming() -> Iterable[TopicNamingSpec]:
    """Contribute Debezium's naming strategies."""
    return TOPIC_NAMING
