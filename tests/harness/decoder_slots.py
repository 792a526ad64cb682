"""Slots of one database, one for each decoder and its options, and the decoders that read them.

The slots are read through SQL functions, whose payloads are those of START_REPLICATION.
"""

from collections.abc import Iterable, Mapping

from tests.harness.servers.postgres import Database

from waltap.changes.decode import Decoder, DecoderContext, ServerInfo
from waltap_decoders.plugin import register_decoders
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

__all__ = ["VARIANTS", "DecoderSlots"]

SPECS = {spec.name: spec for spec in register_decoders()}
VARIANTS: dict[str, tuple[str, Mapping[str, object]]] = {
    "pgoutput": ("pgoutput", {}),
    "pgoutput streaming": ("pgoutput", {"pgoutput.streaming": "on"}),
    "wal2json 2": ("wal2json", {}),
    "wal2json 1": ("wal2json", {"wal2json.format-version": "1"}),
    "wal2json chunks": ("wal2json_streaming", SPECS["wal2json_streaming"].forced_options),
    "decoderbufs": ("decoderbufs", {}),
}
"""Name → decoder and its options."""

PINNED = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
    "logical_decoding_work_mem": "64kB",
}


class DecoderSlots:
    """``connection`` reads; ``setup`` is run on it before the slots are made."""

    def __init__(self, database: Database, setup: Iterable[str]) -> None:
        self.connection = database.connect()
        self._names = {name: f"{database.name}_{n}" for n, name in enumerate(VARIANTS)}
        for name, value in PINNED.items():
            self.connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        self.run(*setup)
        for name, slot in self._names.items():
            plugin = SPECS[VARIANTS[name][0]].output_plugin
            self.run(f"SELECT pg_create_logical_replication_slot('{slot}', '{plugin}')")
        properties = PostgresProperties.model_validate({"database.dbname": database.name})
        self._catalogue = PostgresCatalogue(self.connection, properties)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def decoder(self, name: str) -> Decoder:
        """Return a new decoder, which reads a publication ``p``."""
        decoder, options = VARIANTS[name]
        return SPECS[decoder].factory(
            DecoderContext(
                server=ServerInfo(version_num=self.connection.info.server_version),
                catalogue=self._catalogue,
                publications=("p",),
                options=options,
            )
        )

    def frames(self, name: str, decoder: Decoder, how: str = "peek") -> list[tuple[int, bytes]]:
        """Return what the slot holds; ``how`` is ``get`` where it is consumed."""
        asked = [text for pair in decoder.start_options().items() for text in pair]
        rows = self.connection.execute(
            f"SELECT (lsn - '0/0')::int8, data FROM pg_logical_slot_{how}_binary_changes(%s, NULL, NULL"
            + ", %s" * len(asked)
            + ")",
            [self._names[name], *asked],
        )
        return [(int(lsn), bytes(data)) for lsn, data in rows.fetchall()]
