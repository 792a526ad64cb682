-- Gives a table the replica identity that the output plugin `yboutput` of the tests emulates.
-- PostgreSQL has no identity CHANGE and cannot store one: the plugin reads the name from the table's
-- comment, and needs whole old rows in the WAL to tell what an update wrote.
CREATE FUNCTION yb_replica_identity(relation regclass, identity text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF identity NOT IN ('CHANGE', 'DEFAULT', 'FULL', 'NOTHING') THEN
    RAISE EXCEPTION 'replica identity % is none of CHANGE, DEFAULT, FULL, NOTHING', identity;
  END IF;
  -- there and back: only a change of the table's own identity makes the plugin look again
  EXECUTE format('ALTER TABLE %s REPLICA IDENTITY NOTHING', relation);
  IF identity <> 'NOTHING' THEN
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', relation);
  END IF;
  EXECUTE format('COMMENT ON TABLE %s IS %L', relation, 'yb:' || identity);
END
$$;
