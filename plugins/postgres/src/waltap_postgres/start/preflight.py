"""Checks of all server requirements before a start, with remedies.

Each remedy suffices: after it, the check passes and so does the start.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import ClassVar

from waltap.base.text import sql_name
from waltap.changes.decode.decoder import DecoderContext, ServerInfo, is_readable
from waltap.changes.transactions.position import lsn_text
from waltap.errors import RetryVerdict, SourceError, WaltapError
from waltap.ports.source.connector import ConnectorContext, PreflightCheck
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.connection import PostgresSession, watch
from waltap_postgres.connection_errors import PoolerInTheWay
from waltap_postgres.errors import (
    EncodingNotConverted,
    NothingCaptured,
    PrivilegeMissing,
    PublicationNotPermitted,
    RowsHidden,
    ServerLimit,
    SignalTableMissing,
    TableUnreadable,
)
from waltap_postgres.identity import IdentityEvidence, identity_evidence
from waltap_postgres.replication.publication import (
    TREE,
    PublicationPlan,
    foreign_tables,
    members,
    published,
)
from waltap_postgres.replication.publication_completeness import PublicationShortfall
from waltap_postgres.replication.slot import failover_refusal, slot_in_use
from waltap_postgres.snapshot.options import overrides
from waltap_postgres.snapshot.tables_reader import failed
from waltap_postgres.snapshot.transaction import SnapshotTable
from waltap_postgres.start.server_checks import (
    HostedService,
    failover,
    hosting,
    output_plugin,
    senders,
    server_settings,
    slot_limits,
    standby,
    version,
    wal_level,
    writer_delay,
)
from waltap_postgres.start.startup_plan import StartupPlan

COLUMN_NAMES_SQL = """
SELECT n.nspname::text, c.relname::text, a.attname::text, t.typname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_type t ON t.oid = a.atttypid
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(temp|toast)'
 ORDER BY 1, 2, a.attnum
"""

# DETACH CONCURRENTLY can end half way (`to_jsonb`: its column came with 14). The server crashes if it
# decodes such a partition for FOR ALL TABLES WITH (publish_via_partition_root).
UNSTREAMED_SQL = f"""{TREE}
SELECT format('%%s is half detached from %%s: its changes may be in no stream, or crash the server',
              part, root),
       format('ALTER TABLE %%s DETACH PARTITION %%s FINALIZE', root, part)
  FROM (SELECT inhparent::regclass AS root, inhrelid::regclass AS part FROM pg_inherits i
         WHERE (to_jsonb(i) ->> 'inhdetachpending')::bool) pending
 WHERE EXISTS (SELECT FROM tree WHERE relation IN (root, part))
UNION ALL
SELECT format('%%s is unlogged: only a snapshot has its rows', c.oid::regclass),
       format('ALTER TABLE %%s SET LOGGED', c.oid::regclass)
  FROM tree t JOIN pg_class c ON c.oid = t.relation WHERE c.relpersistence = 'u'
 ORDER BY 1
"""

NOT_FULL_SQL = f"""{TREE}
SELECT c.oid::regclass::text FROM tree t JOIN pg_class c ON c.oid = t.relation
 WHERE c.relkind = 'r' AND c.relreplident <> 'f' ORDER BY 1
"""

SETTINGS = (
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "output_plugin_libraries",
    "synchronized_standby_slots",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "wal_writer_delay",
    "commit_delay",
)
# A message names at most so many tables.
NAMED = 20
# Databases and roles whose commits do not wait for the disk; "all" comes from the server's own
# setting, which a setting of our session would hide.
LAZY_SQL = """
SELECT 'all'::text FROM pg_settings
 WHERE name = 'synchronous_commit' AND setting = 'off'
   AND source NOT IN ('client', 'database', 'user', 'database user', 'session', 'interactive')
UNION ALL
SELECT concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname))
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
       LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE 'synchronous_commit=off' = ANY(s.setconfig)
   AND (s.setdatabase = 0 OR d.datname = current_database())
"""


class PreflightChecks:
    """Check one start without changing the server.

    Every method raises: ConnectionLost.
    """

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        context: ConnectorContext,
        server: ServerInfo,
        captured: list[CatalogTable],
    ) -> None:
        self.catalogue, self.properties = catalogue, catalogue.properties
        self.context, self.server, self.captured = context, server, captured
        self._decoder = context.decoder

    def checks(
        self,
        decide: Callable[[], StartupPlan],
        plan: Callable[[], PublicationPlan],
        snapshot_tables: Callable[[], list[SnapshotTable]],
    ) -> list[PreflightCheck]:
        """Return every check. The start itself calls the same ``decide`` and ``plan``."""
        found = [self.version(), *self.connection()]
        decision: StartupPlan | None = None
        try:
            decision = decide()
            found.append(_start(decision))
        except WaltapError as error:
            found.append(PreflightCheck.failed("start", error))
        if decision is None or decision.stream:
            found += self._of_stream(decision, plan)
        masks = (self.context.mask_check(table.relation) for table in self.captured)
        found += [self._tables(decision), *self._left_out(), *filter(None, masks)]
        if decision is not None and decision.snapshot:
            found += self._of_snapshot(snapshot_tables())
        signal = self.context.capture.signal_table
        if signal is not None:
            found.append(self._signal(*signal))
        return found

    # --- requirements of streaming -------------------------------------------------------------

    def _of_stream(
        self, decision: StartupPlan | None, plan: Callable[[], PublicationPlan]
    ) -> list[PreflightCheck]:
        found = server_settings(self.catalogue, SETTINGS)
        settings = {name: setting.value for name, setting in found.items()}
        service = hosting(self.catalogue)
        # Members of the first roles may replicate without the attribute, members of the second one
        # publish as superusers do.
        admin_role = "" if service is None else service.admin
        roles = [service.granted, admin_role] if service is not None and service.granted else []
        ((superuser, replication, create, granted, admin, in_recovery, slots, used),) = (
            self.catalogue.query(self.facts_sql, (roles, admin_role))
        )
        checks = [
            wal_level(found.get("wal_level"), service),
            self._slot(decision, slots, int(settings.get("max_replication_slots", "0"))),
            senders(used, int(settings.get("max_wal_senders", "0"))),
            self._superuser()
            if superuser
            else self._privileges(service, may_replicate=replication or granted),
            output_plugin(settings, self._decoder.output_plugin),
            *self._decoding(),
            *slot_limits(
                settings,
                service,
                limits_wal=self.context.limits_wal,
                wal_status=decision.slot.wal_status if decision and decision.slot else "",
            ),
            *writer_delay(settings, [name for (name,) in self.catalogue.query(LAZY_SQL)]),
            *(service.checks() if service is not None else ()),
            *(standby(self.server.version_num, self._primary()) if in_recovery else ()),
        ]
        refused_failover = failover_refusal(self.catalogue, standby=in_recovery)
        if refused_failover is not None:
            checks.append(PreflightCheck.failed("slot.failover", refused_failover))
        elif self.properties.slot_failover:
            checks.append(failover(settings, service))
        checks = self.of_server(checks)
        if not self._decoder.capabilities.publication_filters:
            text = f"not used by {self._decoder.output_plugin}"
            publication = PreflightCheck.ok("publication", text)
            return [*checks, publication, *self._encoding(), *self._identities(None)]
        try:
            planned = plan()
        except WaltapError as error:
            return [*checks, PreflightCheck.failed("publication", error)]
        denied = None
        if in_recovery and planned.statements:
            denied = "the server is a standby, where nothing can be published"
        elif not (superuser or admin):
            denied = self._denied(planned, create=create)
        if denied is not None:
            refused = PublicationNotPermitted(
                denied,
                sql="; ".join(planned.statements),
                database=sql_name(self.properties.dbname),
                user=sql_name(self.properties.user),
            )
            return [*checks, PreflightCheck.failed("publication", refused)]
        checks += [*self._publication(planned), *self._partitions()]
        return [*checks, *self._identities(planned)]

    def _decoding(self) -> list[PreflightCheck]:
        """Check that the server supports the decoder's properties."""
        # Else the slot is created and the snapshot read before the stream is refused.
        context = DecoderContext(
            server=self.server, catalogue=self.catalogue, options=self._decoder.options
        )
        try:
            self._decoder.factory(context)
        except WaltapError as error:
            return [PreflightCheck.failed("decoder", error)]
        return []

    # One row for a service's roles: is a superuser; may replicate; may create publications; is a member
    # of a role whose members may replicate, and of one whose members publish as superusers do; the
    # server is a standby; the numbers of slots and walsenders.
    facts_sql: ClassVar[str] = """
SELECT rolsuper, rolreplication, has_database_privilege(current_database(), 'CREATE'),
       EXISTS (SELECT FROM pg_roles h WHERE h.rolname = ANY(%s) AND pg_has_role(h.oid, 'MEMBER')),
       EXISTS (SELECT FROM pg_roles h WHERE h.rolname = %s AND pg_has_role(h.oid, 'MEMBER')),
       pg_is_in_recovery(), (SELECT count(*) FROM pg_replication_slots),
       (SELECT count(*) FROM pg_stat_replication)
  FROM pg_roles WHERE rolname = current_user
"""

    def version(self) -> PreflightCheck:
        return version(self.server.version_num)

    def connection(self) -> list[PreflightCheck]:
        """Check that no pooler hides the server."""
        # A pooler reports its own process number to the client, not the backend's.
        ((pid,),) = self.catalogue.query("SELECT pg_backend_pid()")
        if pid == self.catalogue.backend_pid:
            return []
        # A pooler that passes replication on does no harm.
        try:
            way = watch(self.properties)
            with closing(
                PostgresSession(self.properties, role="question", watch=way, replication=True)
            ) as session:
                session.execute("IDENTIFY_SYSTEM")
        except PoolerInTheWay as error:
            return [PreflightCheck.failed("connection", error)]
        except WaltapError:
            return []  # the other checks report it
        found = "what answers is not the server itself, but passes replication on"
        return [PreflightCheck.ok("connection", found)]

    def of_server(self, checks: list[PreflightCheck]) -> list[PreflightCheck]:
        """Return the checks that apply to this kind of server.

        They cover WAL, slots, walsenders, privileges and the output plugin. Other servers override
        this.
        """
        return checks

    def _slot(self, decision: StartupPlan | None, used: int, limit: int) -> PreflightCheck:
        slot = None if decision is None else decision.slot
        if slot is not None and slot.active_pid and not slot.temporary:
            return PreflightCheck.failed("replication slot", slot_in_use(self.catalogue, slot))
        found = f"{used} of {limit} slots in use"
        if slot is None and decision is not None and used >= limit:
            return PreflightCheck.failed("replication slot", ServerLimit(found))
        return PreflightCheck.ok("replication slot", found)

    def _encoding(self) -> list[PreflightCheck]:
        """Check that the decoder can convert the database's encoding."""
        # The server converts the text of pgoutput; other plugins send text as it is stored.
        ((encoding,),) = self.catalogue.query(
            "SELECT pg_encoding_to_char(encoding)::text FROM pg_database"
            " WHERE datname = current_database()"
        )
        if is_readable(encoding):
            return []
        problem = (
            f"the database is in {encoding}, and {self._decoder.output_plugin} sends text as stored"
        )
        return [PreflightCheck.failed("encoding", EncodingNotConverted(problem))]

    def _primary(self) -> str | None:
        """Return the address of a standby's primary.

        None means that the standby hides it from this role.
        """
        rows = self.catalogue.query(
            "SELECT sender_host, sender_port FROM pg_stat_wal_receiver WHERE sender_host IS NOT NULL"
        )
        return next((f"{host}:{port}" for host, port in rows), None)

    def _superuser(self) -> PreflightCheck:
        return PreflightCheck.warning(
            "privileges",
            f"role {self.properties.user} is a superuser, which capturing does not need: functions "
            "in indexes of captured tables run with its rights",
            "Capture with a role of its own: CREATE ROLE waltap LOGIN REPLICATION; "
            "docs/howto/postgresql.md lists its other grants",
        )

    def _privileges(self, service: HostedService | None, *, may_replicate: bool) -> PreflightCheck:
        user = self.properties.user
        if may_replicate:
            return PreflightCheck.ok("privileges", "REPLICATION")
        found = f"role {user} has no REPLICATION"
        sql = f"ALTER ROLE {sql_name(user)} WITH REPLICATION"
        remedy = f"As a superuser: {sql};"
        if service is not None:
            sql = service.grant(user)
            found = f"role {user} may not replicate on {service.name}"
            remedy = f"As {service.admin}, or a member of it: {sql};"
            if not service.admin:
                sql = remedy = service.switch
        error = PrivilegeMissing(found, user=sql_name(user), sql=sql)
        return PreflightCheck(
            name="privileges", verdict="error", found=found, remedy=remedy, error=error
        )

    def _denied(self, plan: PublicationPlan, *, create: bool) -> str | None:
        """Return why this role may not run the plan, or None."""
        user = self.properties.user
        if plan.all_tables:
            return f"role {user!r} is not a superuser, and only a superuser publishes all tables"
        if plan.created and not create:
            return f"role {user!r} may not make publications in this database"
        foreign = sorted(foreign_tables(self.catalogue, plan.added).items())
        if foreign:
            names = ", ".join(f"{'.'.join(name)} (of {owner})" for name, owner in foreign[:NAMED])
            return f"role {user!r} may not publish tables that it does not own: {names}"
        altered = [name for name in plan.names if name not in plan.created]
        owners = self.catalogue.query(
            "SELECT pubname::text, pg_get_userbyid(pubowner)::text FROM pg_publication"
            " WHERE pubname = ANY(%s) AND NOT pg_has_role(pubowner, 'USAGE') ORDER BY 1",
            # More statements than created publications: some statement alters one.
            (altered if len(plan.statements) > len(plan.created) else [],),
        )
        for name, owner in owners:
            return f"publication {name!r} must be changed, and belongs to {owner}"
        return None

    def _publication(self, plan: PublicationPlan) -> list[PreflightCheck]:
        name = self.properties.publication_name
        if plan.denied:
            return [_left_out(plan, name, self.properties.user)]
        if plan.waiting and not plan.shortfalls:
            return [_waiting(plan, self.properties.slot_name)]
        misnamed = [
            (name, each)
            for name, each in plan.shortfalls
            if each.fitting and name not in plan.mended
        ]
        missing = [each for each in plan.shortfalls if each not in misnamed]
        found = [_falls_short(plan, missing)] if missing else []
        found += [_misnamed(name, each) for name, each in misnamed]
        found += self._uncovered(plan, {i for _, each in misnamed for i in each.table_ids})
        if found:
            return found
        if plan.statements:
            mode = self.properties.publication_autocreate_mode
            verb = "made" if name in plan.created else "changed"
            text = f"{name!r} will be {verb} ({mode})"
        else:
            text = f"{name!r} covers what is captured"
        return [PreflightCheck.ok("publication", text)]

    def _uncovered(
        self, plan: PublicationPlan, misnamed: Collection[TableId]
    ) -> list[PreflightCheck]:
        """Report captured tables that stay unpublished after the start.

        Changes of ``misnamed`` tables come under other names.
        """
        name = self.properties.publication_name
        if plan.statements or self.properties.publication_autocreate_mode == "filtered":
            return []
        existing = published(self.catalogue, name) or set()
        missing = [
            t.relation
            for t in members(self.captured, via_root=self.properties.publish_via_partition_root)
            if t.relation.table_id not in existing and t.relation.table_id not in misnamed
        ]
        if not missing:
            return []
        tables = ", ".join(sql_name(r.schema, r.table) for r in missing[:NAMED])
        return [
            PreflightCheck.warning(
                "publication",
                f"{name!r} does not cover {', '.join(r.name for r in missing[:NAMED])}",
                f"ALTER PUBLICATION {sql_name(name)} ADD TABLE {tables}",
            )
        ]

    def _partitions(self) -> list[PreflightCheck]:
        """Report partitions whose changes may not come."""
        names = [sql_name(*table.relation.table_id) for table in self.captured]
        return [
            PreflightCheck.warning("partitions", found, remedy)
            for found, remedy in self.catalogue.query(UNSTREAMED_SQL, (names,))
        ]

    def _identities(self, plan: PublicationPlan | None) -> list[PreflightCheck]:
        """Check the replica identity of each captured table.

        Without ``plan`` nothing is published, so the server refuses no UPDATE.
        """
        found = []
        for table in self.captured:
            effect = "" if table.supports_updates else _of_publication(plan)
            try:
                warnings = self.context.identity_warnings(table.relation)
            except WaltapError as error:
                return [PreflightCheck.failed("replica identity", error)]
            found += [
                PreflightCheck.warning(
                    "replica identity",
                    f"{warning.relation}: {warning.what}{effect}",
                    warning.remedy,
                )
                for warning in warnings
            ]
        if self.properties.publish_via_partition_root:
            found += self._partitions_not_full()
        return found or [PreflightCheck.ok("replica identity", "every table has one")]

    def _partitions_not_full(self) -> list[PreflightCheck]:
        """Report partitions that ALTER TABLE of a root under FULL has not reached."""
        relations = [t.relation for t in self.captured if t.partitioned]
        whole = [r for r in relations if identity_evidence(r.identity) is IdentityEvidence.ROW]
        full = [sql_name(*each.table_id) for each in whole]
        return [
            PreflightCheck.warning(
                "replica identity",
                f"{part}, of a root under FULL, is not under it: old rows have NULL beside the key",
                f"ALTER TABLE {part} REPLICA IDENTITY FULL",
            )
            for (part,) in (self.catalogue.query(NOT_FULL_SQL, (full,)) if full else ())
        ]

    # --- tables and rows -----------------------------------------------------------------------

    def _tables(self, decision: StartupPlan | None) -> PreflightCheck:
        if self.captured:
            found = _count(self.captured)
            return PreflightCheck.ok("captured tables", found)
        capture = self.context.capture
        listed = (
            capture.schema_include
            or capture.schema_exclude
            or capture.table_include
            or capture.table_exclude
        )
        what = "no table fits the include and exclude lists" if listed else "there is no table yet"
        check = PreflightCheck.failed("captured tables", NothingCaptured(what))
        # Debezium also refuses to create a publication without tables.
        mode = self.properties.publication_autocreate_mode
        filtered = self._decoder.capabilities.publication_filters and mode == "filtered"
        # WAL that is not read yet may still have rows of a table that was dropped since.
        resumes = decision is not None and decision.offset is not None
        fatal = listed and not resumes and (filtered or not self.context.debezium)
        return check if fatal else check.as_warning()

    def _left_out(self) -> list[PreflightCheck]:
        included = (
            "a plugin that knows the type delivers the values (`waltap plugins` lists the types), "
            "include.unknown.datatypes=true the bytes of their text; "
        )
        if self.context.capture.include_unknown_datatypes:
            included = "a generated column of type text delivers such a value; "  # money[]
        return [
            PreflightCheck.warning(
                "columns",
                f"of {table.relation.name} are left out, nothing maps their types: "
                f"{', '.join(names)}",
                included + "column.exclude.list says that they are not wanted",
            )
            for table in self.captured
            if (names := self.context.left_out(table.relation))
        ]

    def _of_snapshot(self, targets: list[SnapshotTable]) -> list[PreflightCheck]:
        tables = [target.table for target in targets]
        unreadable = tables_unreadable(self.catalogue, tables)
        if unreadable is not None:
            return [PreflightCheck.failed("rows", unreadable)]
        hidden = self.catalogue.query(
            "SELECT n.nspname || '.' || c.relname FROM unnest(%s::oid[]) o(oid)"
            " JOIN pg_class c ON c.oid = o.oid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relrowsecurity AND row_security_active(c.oid) ORDER BY 1",
            ([table.relation.oid for table in tables],),
        )
        if hidden:
            user = self.properties.user
            names = ", ".join(name for (name,) in hidden[:NAMED])
            error = RowsHidden(
                f"policies hide rows of {names} from role {user!r}", user=sql_name(user)
            )
            return [PreflightCheck.failed("rows", error)]
        selects = overrides(self.properties)
        for target in targets:
            select = selects.get(target.table.relation.name)
            if select and target.published.rows:
                # A row filter is added to the profile's own SELECT; planning shows whether it fits.
                try:
                    self.catalogue.plan(target.selected(select))
                except SourceError as error:
                    if error.retry is not RetryVerdict.NEVER:
                        raise
                    return [PreflightCheck.failed("rows", failed(target, error))]
        return [PreflightCheck.ok("rows", f"{_count(tables)} to read")]

    def _signal(self, schema: str, table: str) -> PreflightCheck:
        # Signals and watermarks are rows that waltap writes and reads back from the stream.
        name, user = sql_name(schema, table), sql_name(self.properties.user)
        ((exists, usable, fits, writable),) = self.catalogue.query(
            "SELECT c.oid IS NOT NULL, n.oid IS NOT NULL AND has_schema_privilege(n.oid, 'USAGE'),"
            " (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0"
            "   AND NOT a.attisdropped) >= 3,"
            " c.oid IS NOT NULL AND has_table_privilege(c.oid, 'INSERT')"
            "   AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'DELETE')"
            " FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s"
            " LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %s"
            "   AND c.relkind IN ('r', 'p')",
            (schema, table),
        )
        grants = f"GRANT USAGE ON SCHEMA {sql_name(schema)} TO {user}"
        if not exists:
            problem = f"signal table {schema}.{table} does not exist"
            remedy = (
                f"CREATE SCHEMA IF NOT EXISTS {sql_name(schema)}; {grants}; CREATE TABLE {name} "
                "(id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048)); "
                f"ALTER TABLE {name} OWNER TO {user}"
            )
        elif not fits:
            problem = f"signal table {schema}.{table} has fewer than three columns"
            remedy = f"ALTER TABLE {name} ADD COLUMN …: it needs id, type and data, in this order"
        elif not (usable and writable) and not self.context.capture.read_only:
            problem = f"role {self.properties.user!r} may not write signal table {schema}.{table}"
            remedy = f"{grants}; GRANT SELECT, INSERT, DELETE ON {name} TO {user}"
        else:
            return PreflightCheck.ok("signal table", f"{schema}.{table}")
        check = PreflightCheck.failed("signal table", SignalTableMissing(problem, sql=remedy))
        return check.as_warning() if self.context.debezium else check


def _left_out(plan: PublicationPlan, publication: str, user: str) -> PreflightCheck:
    names = ", ".join(f"{'.'.join(name)} (of {owner})" for name, owner in plan.denied[:NAMED])
    tables = ", ".join(sql_name(*name) for name, _ in plan.denied)
    return PreflightCheck.warning(
        "publication",
        f"role {user!r} may not publish tables that it does not own: {names}; they are left out, "
        "and what is written to them does not come",
        f"ALTER PUBLICATION {sql_name(publication)} ADD TABLE {tables} (as a superuser, or by a "
        "role that owns both); or leave them out with table.exclude.list",
    )


def _waiting(plan: PublicationPlan, slot: str) -> PreflightCheck:
    names = ", ".join(plan.waiting[:NAMED])
    return PreflightCheck.warning(
        "publication",
        "tables without a key join the publication of inserts at a later start, when slot "
        f"{slot} has no older WAL to decode; until then, tables in no publication are not captured, and "
        f"the others refuse UPDATE and DELETE: {names}",
        "Start again when the slot has advanced (`waltap status FILE`), or give them a key, or "
        "REPLICA IDENTITY FULL",
    )


def _misnamed(name: str, shortfall: PublicationShortfall) -> PreflightCheck:
    return PreflightCheck.warning(
        "publication",
        f"{name!r}: {shortfall.what}: changes of partitioned tables come under other names than the "
        "rows of a snapshot",
        f"{shortfall.fitting} in the profile; or {'; '.join(shortfall.statements)}; then start again",
    )


def _falls_short(
    plan: PublicationPlan, shortfalls: Sequence[tuple[str, PublicationShortfall]]
) -> PreflightCheck:
    lacks = "; ".join(f"{name!r}: {shortfall.what}" for name, shortfall in shortfalls[:NAMED])
    found = f"the publication lacks captured changes: {lacks}"
    remaining: list[str] = []
    for name, shortfall in shortfalls:
        remaining += shortfall.statements if name not in plan.mended else ()
    if remaining:
        found += "; these changes are not delivered"
        return PreflightCheck.warning("publication", found, "; ".join(remaining))
    found += "; the start corrects it, but does not deliver earlier changes"
    remedy = (
        "To publish less on purpose, manage the publication: publication.autocreate.mode=disabled"
    )
    return PreflightCheck.warning("publication", found, remedy)


def _start(decision: StartupPlan) -> PreflightCheck:
    does = ["takes a snapshot"] if decision.snapshot else []
    if decision.stream:
        slot = decision.slot
        if slot is None or decision.new_slot:
            does.append("streams from a new slot")
        else:
            does.append(
                f"streams from slot {slot.name!r}, which is at {lsn_text(slot.confirmed_flush_lsn)}"
            )
    found = " and ".join(does) or "does nothing"
    if decision.lost is not None:
        remedy = (
            "snapshot.mode asks for it"
            if decision.snapshot
            else "The repair reads the tables again"
        )
        return PreflightCheck.warning(
            "start", f"{decision.lost.problem}: the start {found}", remedy
        )
    if decision.takes_over:
        return PreflightCheck.warning(
            "start",
            f"{found}, and takes it over from the program that made it",
            "Choose another slot.name if another consumer needs it",
        )
    return PreflightCheck.ok("start", found)


def _count(tables: list[CatalogTable]) -> str:
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"


def _of_publication(plan: PublicationPlan | None) -> str:
    """Return a publication's effect on a table without an identity."""
    if plan is None:
        return ""
    if plan.inserts_only:
        return "; its updates and deletes are not captured, only inserts and TRUNCATE"
    return "; once it is published, its UPDATE and DELETE fail"


def tables_unreadable(
    catalogue: PostgresCatalogue, tables: list[CatalogTable]
) -> SourceError | None:
    """Return the error for tables that a snapshot cannot read.

    None means that it can read them all.
    """
    relations = catalogue.unreadable([table.relation for table in tables])
    if not relations:
        return None
    names = ", ".join(relation.name for relation in relations)
    user = catalogue.properties.user
    return TableUnreadable(
        f"role {user!r} may not read {names}",
        tables=", ".join(sql_name(r.schema, r.table) for r in relations),
        schemas=", ".join(sorted({sql_name(r.schema) for r in relations})),
        user=sql_name(user),
    )
