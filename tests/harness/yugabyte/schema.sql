-- What a database of the double answers otherwise than PostgreSQL. The proxy (`server.py`) puts this schema
-- before pg_catalog on the search path of every connection that goes through it; a test's own connections
-- do not, so that they see PostgreSQL.
CREATE SCHEMA yb_double;

-- unlogged and without a key: no publication has it
CREATE UNLOGGED TABLE yb_double.slots (
  slot_name text, stream_id text, lsn_type text, commit_ht bigint, exported text,
  confirmed bigint, active boolean, frozen jsonb);

CREATE FUNCTION yb_double.version() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT coalesce(current_setting('yb_double.version', true),
                  'PostgreSQL 15.12-YB-2025.2.4.0-b0 on x86_64-pc-linux-gnu')
$$;

CREATE FUNCTION yb_double.refuse(code text, words text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = code, MESSAGE = words;
END
$$;

CREATE FUNCTION yb_double.identity_of(oid) RETURNS "char" LANGUAGE sql STABLE AS $$
  SELECT CASE pg_catalog.obj_description($1, 'pg_class')
           WHEN 'yb:DEFAULT' THEN 'd' WHEN 'yb:FULL' THEN 'f' WHEN 'yb:NOTHING' THEN 'n' ELSE 'c' END::"char"
$$;

-- relreplident alone differs; a system column is not one of a view's
CREATE VIEW yb_double.pg_class AS
SELECT oid, relname, relnamespace, reltype, reloftype, relowner, relam, relfilenode, reltablespace,
       relpages, reltuples, relallvisible, reltoastrelid, relhasindex, relisshared, relpersistence,
       relkind, relnatts, relchecks, relhasrules, relhastriggers, relhassubclass, relrowsecurity,
       relforcerowsecurity, relispopulated,
       CASE WHEN oid >= 16384 AND relkind IN ('r', 'p') THEN yb_double.identity_of(oid)
            ELSE relreplident END AS relreplident,
       relispartition, relrewrite, relfrozenxid, relminmxid, relacl, reloptions, relpartbound
  FROM pg_catalog.pg_class;

CREATE VIEW yb_double.pg_settings AS
SELECT name, setting, unit, category, short_desc, extra_desc, context, vartype, source, min_val, max_val,
       enumvals, boot_val, reset_val, sourcefile, sourceline, pending_restart
  FROM pg_catalog.pg_settings WHERE name <> 'wal_level'
UNION ALL
SELECT name, setting, NULL, 'YugabyteDB', '', NULL, 'superuser', 'bool', 'default', NULL, NULL, NULL,
       setting, setting, NULL, NULL, false
  FROM (VALUES ('yb_enable_replication_commands', 'on'), ('yb_enable_replica_identity', 'on'),
               ('yb_default_replica_identity', 'CHANGE'), ('wal_level', 'replica')) s(name, setting);

CREATE FUNCTION yb_double.lsn(bigint) RETURNS pg_lsn LANGUAGE sql IMMUTABLE AS $$
  SELECT (to_hex(($1 >> 32) & 4294967295) || '/' || to_hex($1 & 4294967295))::pg_lsn
$$;

-- the columns of PostgreSQL 15, and YugabyteDB's; positions are those that the proxy counts
CREATE VIEW yb_double.pg_replication_slots AS
SELECT s.slot_name::name, p.plugin, p.slot_type, p.datoid, p.database, false AS temporary, s.active,
       NULL::int AS active_pid, '1'::xid AS xmin, '1'::xid AS catalog_xmin,
       yb_double.lsn(CASE WHEN s.confirmed = 2 THEN 1 ELSE s.confirmed END) AS restart_lsn,
       yb_double.lsn(s.confirmed) AS confirmed_flush_lsn, NULL::text AS wal_status,
       NULL::bigint AS safe_wal_size, false AS two_phase, s.stream_id AS yb_stream_id,
       s.commit_ht AS yb_restart_commit_ht, s.lsn_type AS yb_lsn_type,
       to_timestamp((s.commit_ht >> 12) / 1000000.0) AS yb_restart_time
  FROM yb_double.slots s JOIN pg_catalog.pg_replication_slots p ON p.slot_name = s.slot_name;

CREATE FUNCTION yb_double.pg_drop_replication_slot(wanted name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM yb_double.slots s WHERE s.slot_name = wanted) THEN
    RAISE EXCEPTION 'replication slot "%" does not exist', wanted USING ERRCODE = '42704';
  END IF;
  IF (SELECT s.active FROM yb_double.slots s WHERE s.slot_name = wanted) THEN
    RAISE EXCEPTION 'replication slot "%" is active', wanted USING ERRCODE = '55006';
  END IF;
  PERFORM pg_catalog.pg_drop_replication_slot(wanted);
  DELETE FROM yb_double.slots s WHERE s.slot_name = wanted;
END
$$;

CREATE FUNCTION yb_double.yb_get_current_hybrid_time_lsn() RETURNS SETOF bigint LANGUAGE sql AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint << 12
$$;

-- a hash of the text, in 0..65535; the proxy computes the same (`wire.hash_code`). A function that SQL makes
-- has no "any": the second column may have another type, and a third that of the second
CREATE FUNCTION yb_double.yb_hash_code(anyelement) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT ('x' || substr(md5($1::text), 1, 4))::bit(16)::int
$$;
CREATE FUNCTION yb_double.yb_hash_code(anyelement, anycompatible) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT ('x' || substr(md5($1::text || E'\x01' || $2::text), 1, 4))::bit(16)::int
$$;
CREATE FUNCTION yb_double.yb_hash_code(anyelement, anycompatible, anycompatible) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
  SELECT ('x' || substr(md5($1::text || E'\x01' || $2::text || E'\x01' || $3::text), 1, 4))::bit(16)::int
$$;

-- the first column of a primary key is hashed where nobody says otherwise
CREATE VIEW yb_double.pg_index AS
SELECT indexrelid, indrelid, indnatts, indnkeyatts, indisunique, indnullsnotdistinct, indisprimary,
       indisexclusion, indimmediate, indisclustered, indisvalid, indcheckxmin, indisready, indislive,
       indisreplident, indkey, indcollation, indclass,
       CASE WHEN indisprimary AND indrelid >= 16384
            THEN regexp_replace(indoption::text, '^[0-9]+', '4')::int2vector
            ELSE indoption END AS indoption,
       indexprs, indpred
  FROM pg_catalog.pg_index;

-- tables have CHANGE where nobody says otherwise, as ysql_yb_default_replica_identity has it
CREATE FUNCTION yb_double.default_identity() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE made record;
BEGIN
  FOR made IN SELECT c.objid FROM pg_event_trigger_ddl_commands() c
                JOIN pg_catalog.pg_class r ON r.oid = c.objid AND r.relpersistence = 'p'
               WHERE c.object_type = 'table' AND c.command_tag = 'CREATE TABLE' LOOP
    PERFORM public.yb_replica_identity(made.objid::regclass, 'CHANGE');
  END LOOP;
END
$$;
CREATE EVENT TRIGGER yb_double_identity ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
  EXECUTE FUNCTION yb_double.default_identity();

GRANT USAGE ON SCHEMA yb_double TO PUBLIC;
GRANT ALL ON ALL TABLES IN SCHEMA yb_double TO PUBLIC;
