"""Hook implementations of the framework itself, and nothing else."""

from collections.abc import Iterable

from waltap.hookspecs import hookimpl
from waltap.offsets.specs import OFFSET_STORES
from waltap.render.topic_naming import TOPIC_NAMING
from waltap.specs import OffsetStoreSpec, TopicNamingSpec


@hookimpl
def register_topic_naming() -> Iterable[TopicNamingSpec]:
    """Contribute Debezium's naming strategies."""
    return TOPIC_NAMING


@hookimpl
def register_offset_stores() -> Iterable[OffsetStoreSpec]:
    """Contribute the file store and the one that forgets."""
    return OFFSET_STORES
