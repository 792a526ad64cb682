"""A topic naming strategy: one topic per schema, prefix.schema."""

from waltap.changes.capture import CaptureProperties, TopicNaming


def naming(properties: CaptureProperties) -> TopicNaming:
    """Return what names a table's topic; it is asked once per relation version.

    A strategy that declares properties of its own gets those instead.
    """
    prefix, delimiter = properties.topic_prefix, properties.topic_delimiter
    return lambda schema, _table: delimiter.join((prefix, schema))
