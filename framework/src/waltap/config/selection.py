"""The properties that choose components, before any component can say what it declares."""

from typing import Literal

from waltap.base.property import Properties, declare

__all__ = ["SelectionProperties"]


class SelectionProperties(Properties):
    """Which connector, decoder, snapshot mode, format and naming strategy a pipeline is made of.

    A connector may declare ``plugin.name`` or ``snapshot.mode`` itself; its default then holds.
    """

    name: str | None = declare(
        "name",
        default=None,
        summary="Name of the pipeline and its state folder, and by default of slot and "
        "publication. Default: the name of the profile's file; in a Debezium file "
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
        common=True,
        default="initial",
        summary="When a start reads the tables before it streams.",
    )
    snapshot_mode_custom_name: str | None = declare(
        "snapshot.mode.custom.name",
        default=None,
        advanced=True,
        summary="Snapshot mode of a plugin, with snapshot.mode=custom.",
    )
    snapshot_query_mode: Literal["select_all", "custom"] = declare(
        "snapshot.query.mode",
        default="select_all",
        advanced=True,
        summary="What gives the SELECT of a table without snapshot.select.statement.overrides: "
        "the snapshot mode, by default all rows (select_all), or a plugin (custom).",
    )
    snapshot_query_mode_custom_name: str | None = declare(
        "snapshot.query.mode.custom.name",
        default=None,
        advanced=True,
        summary="Snapshot mode of a plugin that gives the SELECTs, with snapshot.query.mode=custom.",
    )
    snapshot_locking_mode_custom_name: str | None = declare(
        "snapshot.locking.mode.custom.name",
        default=None,
        advanced=True,
        summary="Snapshot mode of a plugin that gives the locks, with snapshot.locking.mode=custom.",
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
    offset_store: str | None = declare(
        "waltap.offset.store",
        default=None,
        advanced=True,
        summary="Name of the offset store; in a waltap profile `type` in [offsets], by default "
        "file.",
    )
    sanitize_pattern: str | None = declare(
        "custom.sanitize.pattern",
        default=None,
        advanced=True,
        summary="Regular expression of property names, in full, whose values are never shown, beside all "
        "whose names look like secrets.",
    )
    header_converter: str | None = declare(
        "header.converter",
        default=None,
        aliases=("format.header",),
        advanced=True,
        summary="Format of header values, by name or Kafka Connect class. Default: JSON; "
        "simple-header for a file of Kafka Connect with the Kafka sink.",
    )
