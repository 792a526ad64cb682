"""YugabyteDB's checks before a start."""

import logging
import re
from collections.abc import Iterator
from typing import ClassVar, Final

from waltap.ports.source.connector import PreflightCheck
from waltap_postgres.snapshot.transaction import SnapshotTable
from waltap_postgres.start.preflight import PreflightChecks
from waltap_yugabyte.errors import ChangeRefused, ReadTimeRefused
from waltap_yugabyte.properties import YugabyteProperties
from waltap_yugabyte.server import release
from waltap_yugabyte.slots import COLUMNS_SQL

log = logging.getLogger(__name__)

# PostgreSQL's checks of WAL settings say nothing about this server.
NOT_ITS_OWN = frozenset({"wal_level", "walsenders"})
# Tables that a message names; it counts the rest.
NAMED = 10
# Share of the retention time below which a slot's expiry is a warning.
SOON = 0.25

PROCEDURES = ["set_yb_read_time(pg_catalog.text)", "disable_catalog_version_check()"]
# Returns: is a superuser; may call both procedures; the release exports snapshots, or NULL if it
# does not say. A CALL under the role's own search_path must find the procedures, as a snapshot
# calls them (`waltap_yugabyte.dialect`). The path is local to the statement, whose own names were
# resolved before.
READ_TIME_SQL = """
WITH path AS (
  SELECT set_config('search_path', (SELECT reset_val FROM pg_settings WHERE name = 'search_path'), true)
      AS schemas)
SELECT rolsuper, (SELECT count(*) = cardinality(%s::text[])
                    FROM (SELECT to_regprocedure(w.signature || left(path.schemas, 0)) AS oid
                            FROM path, unnest(%s::text[]) w(signature)) found
                    JOIN pg_proc p ON p.oid = found.oid
                   WHERE p.prokind = 'p' AND has_function_privilege(p.oid, 'EXECUTE')),
       (SELECT setting = 'on' FROM pg_settings WHERE name LIKE '%%pg_export_snapshot' LIMIT 1)
  FROM pg_roles WHERE rolname = current_user
"""
# Releases that export no snapshot with a slot, whatever their flags.
NEVER_EXPORTS: Final = re.compile(r"2024\.|2\.(1\d|2[0-3])(\.|$)")

# Contents of a table's events, by the letter of its replica identity.
BEFORE = {
    "c": "CHANGE: updates have no `before`, and of `after` the key and what was written; of what was "
    "deleted comes the key",
    "d": "DEFAULT: updates have no `before` and the whole `after`; of what was deleted comes the key",
    "f": "FULL: `before` and `after` are whole",
    "n": "NOTHING: the database refuses UPDATE and DELETE, inserts come",
}


class YugabytePreflight(PreflightChecks):
    """Check a cluster, without PostgreSQL's checks of WAL and walsenders."""

    properties: YugabyteProperties
    facts_sql: ClassVar[str] = re.sub(
        r"\(SELECT count\(\*\) FROM pg_stat_replication\)", "0", PreflightChecks.facts_sql
    )

    def version(self) -> PreflightCheck:
        found = release(self.server.version)
        if found is None:
            return PreflightCheck.warning(
                "server version",
                self.server.version,
                "yb.server.check=refuse refuses servers that do not say that they are YugabyteDB",
            )
        return PreflightCheck.ok("server version", f"YugabyteDB {found}")

    def connection(self) -> list[PreflightCheck]:
        # A node's connection manager is its own part and has no useful ``IDENTIFY_SYSTEM``. If a
        # pooler refuses the stream, its error says so.
        return []

    def of_server(self, checks: list[PreflightCheck]) -> list[PreflightCheck]:
        own = [check for check in checks if check.name not in NOT_ITS_OWN]
        return [*own, *self._commands(), *self._held(), *self._keyless(), *self._expiry()]

    def _of_snapshot(self, targets: list[SnapshotTable]) -> list[PreflightCheck]:
        return [*super()._of_snapshot(targets), *self._read_time()]

    def _read_time(self) -> Iterator[PreflightCheck]:
        if not self.properties.consistent_snapshot:
            return
        ((superuser, procedures, exports),) = self.catalogue.query(
            READ_TIME_SQL, (PROCEDURES, PROCEDURES)
        )
        # Only a superuser may set the read time; the procedures do it for other roles.
        if superuser or procedures:
            return
        problem = f"role {self.properties.user} may not read as of a slot's time"
        if exports is None:
            exports = not NEVER_EXPORTS.match(release(self.server.version) or "")
        if not exports:
            yield PreflightCheck.failed("read time", ReadTimeRefused(problem))
            return
        yield PreflightCheck.warning(
            "read time",
            f"{problem}: without a snapshot exported by the cluster, or after one that broke off, a "
            "start is refused (WT-2153)",
            ReadTimeRefused.remedy,
        )

    def _commands(self) -> Iterator[PreflightCheck]:
        # A release without these settings accepts the commands, so only an off is an error.
        rows = self.catalogue.query(
            "SELECT name, setting FROM pg_settings WHERE setting = 'off' AND name = ANY(%s)",
            (["yb_enable_replication_commands", "yb_enable_replica_identity"],),
        )
        for name, _ in rows:
            yield PreflightCheck(
                name="replication commands",
                verdict="error",
                found=f"{name} is off",
                remedy=f"Set the flag ysql_{name} of the nodes (yb-tserver) to true",
            )

    def _held(self) -> Iterator[PreflightCheck]:
        """Report the contents of events by the slot's replica identities."""
        by_letter: dict[str, list[str]] = {}
        for table in self.captured:
            relation = table.relation
            # A slot keeps the identities of its creation, whatever the tables have now.
            known = self.context.memory.get(relation.oid)
            letter = relation.identity if known is None else known.identity or relation.identity
            by_letter.setdefault(letter, []).append(relation.name)
            if letter != relation.identity:
                yield PreflightCheck.warning(
                    "replica identity",
                    f"{relation.name} got another replica identity after the slot was created; the slot "
                    f"still uses {BEFORE.get(letter, letter).partition(':')[0]}",
                    "To use the new one create a new slot: `waltap slot drop FILE`, "
                    "`waltap offsets clear FILE`",
                )
        plugin = self.context.decoder.output_plugin
        if plugin == "pgoutput" and by_letter.get("c"):
            names = _listed(by_letter["c"])
            problem = (
                f"replica identity CHANGE is not supported for output plugin pgoutput: {names}"
            )
            yield PreflightCheck.failed("replica identity", ChangeRefused(problem))
        for letter, tables in sorted(by_letter.items()):
            found = f"{_listed(tables)}: {BEFORE.get(letter, letter)}"
            log.info(found)
            yield PreflightCheck.ok("events", found)

    def _keyless(self) -> Iterator[PreflightCheck]:
        names = [t.relation.name for t in self.captured if not (t.primary_key or t.partitioned)]
        if names:
            yield PreflightCheck.warning(
                "primary keys",
                f"slots leave out tables without primary key: {_listed(names)}",
                "Give them a primary key; or make the slot with the preview flag "
                "yb_cdcsdk_stream_tables_without_primary_key set, and name message.key.columns",
            )

    def _expiry(self) -> Iterator[PreflightCheck]:
        """Report until when the slot lasts without a reader."""
        known = {name for (name,) in self.catalogue.query(COLUMNS_SQL)}
        if "yb_restart_time" not in known:
            return
        rows = self.catalogue.query(
            "SELECT (extract(epoch FROM now() - yb_restart_time) * 1000)::int8, yb_restart_time::text"
            " FROM pg_replication_slots WHERE slot_name = %s AND yb_restart_time IS NOT NULL",
            (self.properties.slot_name,),
        )
        window = self.properties.slot_window_ms
        for idle, since in rows:
            left_ms = window - idle
            found = f"the slot needs what is from {since} on, which is kept for {window // 60000} minutes"
            if left_ms > window * SOON:
                yield PreflightCheck.ok("slot expiry", found)
                continue
            left_over = f"{left_ms // 60000} minutes are left" if left_ms > 0 else "it may be gone"
            yield PreflightCheck.warning(
                "slot expiry",
                f"{found}: {left_over}",
                "Run the pipeline; raise cdc_intent_retention_ms and cdc_wal_retention_time_secs "
                "of the nodes, and yb.slot.retention.ms with them",
            )


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
