"""The properties that choose components, before any component can say what it declares."""

from waltap.config.property import Properties, declare

__all__ = ["SelectionProperties"]


class SelectionProperties(Properties):
    """Which connector, decoder, snapshot mode, format and naming strategy a pipeline is made of.

    A connector may declare ``plugin.name`` or ``snapshot.mode`` itself; its default then holds.
    """

    name: str | None = declare(
        "name",
        default=None,
        summary="Name of the pipeline, of the folder its state is kept in, and of slot and publication "
        "where these are not named; by default the name of the profile's file, for a Debezium file "
        "topic.prefix and slot.name.",
    )
    connector: str | None = declare(
        "connector.class",
        default=None,
        summary="Connector, by name or Debezium class; a waltap profile says `type` in [source].",
    )
    decoder: str = declare(
        "plugin.name",
        default="decoderbufs",
        profile_default="pgoutput",
        summary="Decoder: the logical decoding output plugin on the server.",
    )
    snapshot_mode: str = declare(
        "snapshot.mode",
        default="initial",
        summary="When a start reads the tables before it streams.",
    )
    snapshot_mode_custom_name: str | None = declare(
        "snapshot.mode.custom.name",
        default=None,
        advanced=True,
        summary="Snapshot mode of a plugin, with snapshot.mode=custom.",
    )
    topic_naming: str = declare(
        "topic.naming.strategy",
        default="io.debezium.schema.SchemaTopicNamingStrategy",
        advanced=True,
        summary="How topics are named: strategy by name or Debezium class.",
    )
    key_converter: str | None = declare(
        "key.converter",
        default=None,
        advanced=True,
        aliases=("format.key",),
        summary="Format of keys, by name or Kafka Connect class, where it is another than that of values.",
    )
    value_converter: str | None = declare(
        "value.converter",
        default=None,
        advanced=True,
        aliases=("format.value",),
        summary="Format of values, by name or Kafka Connect class; `type` in [format] is that of keys and "
        "values.",
    )
    header_converter: str | None = declare(
        "header.converter",
        default=None,
        aliases=("format.header",),
        advanced=True,
        summary="Format of header values, by name or Kafka Connect class; JSON by default.",
    )
