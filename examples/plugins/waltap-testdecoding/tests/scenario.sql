-- What tests/recordings.jsonl holds: `record.py` runs each part on a server and keeps its lines.
-- @setup
CREATE SCHEMA "Odd Schema";
CREATE TYPE public.mood AS ENUM ('ok', 'it''s');
CREATE TABLE public.t (id int PRIMARY KEY, a text, n numeric(10,2), big text);
ALTER TABLE public.t ALTER big SET STORAGE EXTERNAL;
CREATE TABLE public.f (id int, a text, big text);
ALTER TABLE public.f REPLICA IDENTITY FULL;
CREATE TABLE public.nokey (id int, a text);
CREATE TABLE "Odd Schema"."My: Table" ("id[x]" int PRIMARY KEY, "a:b" "char", "q""q" public.mood, arr int[], ts timestamptz(3), b bit(3), f float8, bo bool, by bytea);
-- @key
INSERT INTO t VALUES (1, 'it''s "x" \ back', 1.50, NULL), (2, E'line\nbreak', NULL, repeat('x', 2100));
UPDATE t SET a = 'b' WHERE id = 2;
UPDATE t SET id = 20 WHERE id = 2;
DELETE FROM t WHERE id = 20;
-- @odd
INSERT INTO "Odd Schema"."My: Table" VALUES (1, 'c', 'it''s', '{1,NULL}', '2024-02-29 12:00:00+00', B'101', 1.5, true, '\x00ff'), (2, '', NULL, NULL, NULL, NULL, 'NaN', false, NULL), (3, NULL, 'ok', '{}', 'infinity', NULL, '-Infinity', NULL, '\x');
-- @full
INSERT INTO f VALUES (1, 'a', repeat('y', 2100));
UPDATE f SET a = NULL;
UPDATE f SET a = 'null';
DELETE FROM f;
-- @nokey
INSERT INTO nokey VALUES (1, ' new-tuple: id[integer]:1');
UPDATE nokey SET a = 'unchanged-toast-datum';
DELETE FROM nokey;
-- @truncate
TRUNCATE t, f RESTART IDENTITY CASCADE;
TRUNCATE nokey;
-- @message
SELECT pg_logical_emit_message(true, 'app, sz: 5 content:', 'hello');
SELECT pg_logical_emit_message(false, 'app', '\xff00'::bytea);
-- @ddl
INSERT INTO t VALUES (4, 'old', 1, NULL);
ALTER TABLE t ADD c2 int DEFAULT 7;
INSERT INTO t VALUES (5, 'x', 0, NULL, 8);
BEGIN;
ALTER TABLE t DROP COLUMN n;
INSERT INTO t VALUES (6, 'x', NULL, 8);
DELETE FROM t WHERE id = 5;
COMMIT;
