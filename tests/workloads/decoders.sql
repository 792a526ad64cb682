-- One workload for every decoder: types, identities, keys that change, TOAST, savepoints, TRUNCATE,
-- logical messages, a transaction that is large enough to be streamed in progress. Statements end
-- with a semicolon at the end of a line.
INSERT INTO kinds VALUES (1, -32768, 9223372036854775807, 1.1, 0.1::float8 + 0.2::float8, '123456789012345678901234567890.12345678901234567890', 1.5, true, 'ab', 'vc', 'text', '\xdeadbeef00', '2024-02-29', '23:59:59.999999', '12:34:56.789+00', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789012+02', '1 year 2 mons 3 days 04:05:06.7', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a" : 1,  "b":[null]}', '{"b":[null],"a":1.0}', '{1,NULL,-3}', '{a,"b c","q\"d","",NULL,"NULL","back\\slash","co,mma"}', 4294967295, 12345.67, '(1.5,-2)', '192.168.1.5/24', B'1010', B'101', '[1,10)', 'c', 'nm', 'it''s "fine"', 5, '(1,"a ""q"", b")');
INSERT INTO kinds (id) VALUES (2);
INSERT INTO kinds (id, n2, b, c, vc, tx, by, d, t, ttz, ts, tstz, iv, ia, ta, r, m, bt) VALUES (3, '-0.001', false, '', '', '', '', 'infinity', '24:00', '23:59:59.5+00', 'infinity', '-infinity', '-1 mon +2 days -00:00:00.000001', '{}', '{}', 'empty', '-0.01', B'0000');
INSERT INTO kinds (id, f4, f8, n, d, ts, tstz, ia, ta, r) VALUES (4, 1e-45, '-0', '1e-20', '0044-03-15 BC', '0044-03-15 01:02:03 BC', '4713-01-01 00:00:00+00 BC', '[0:1]={7,8}', '{{a,b},{c,NULL}}', '(,)');
INSERT INTO kinds (id, f4, f8, n, d, ts, tx) VALUES (5, 3.4028235e38, 5e-324, '0.00', '5874897-12-31', '294276-12-31 23:59:59.999999', 'quote '' dq " bs \ nl' || chr(10) || 'tab' || chr(9) || 'ctl' || chr(1) || ' é€😀 \N');
INSERT INTO kinds (id, f4, f8, n) VALUES (6, 'NaN', '-Infinity', 'Infinity');
UPDATE kinds SET tx = 'changed', b = NULL WHERE id = 3;
DELETE FROM kinds WHERE id = 2;
INSERT INTO by_key VALUES (1, 'one', repeat('T', 2500)), (2, 'two', NULL);
SELECT pg_logical_emit_message(false, 'pfx', 'behind several');
UPDATE by_key SET a = 'uno' WHERE id = 1;
UPDATE by_key SET id = 10 WHERE id = 1;
UPDATE by_key SET big = repeat('N', 2500) WHERE id = 10;
UPDATE by_key SET a = a;
DELETE FROM by_key WHERE id = 2;
INSERT INTO whole VALUES (1, 'one', repeat('T', 2500)), (2, NULL, NULL);
UPDATE whole SET a = 'uno' WHERE id = 1;
UPDATE whole SET id = 20, a = 'x' WHERE id = 2;
DELETE FROM whole;
INSERT INTO by_index VALUES (1, 'u1', 'a'), (2, 'u2', NULL);
UPDATE by_index SET u = 'u10' WHERE id = 1;
UPDATE by_index SET id = 5 WHERE id = 2;
DELETE FROM by_index WHERE id = 5;
INSERT INTO "Odd Schema"."Odd ""T.a,b" VALUES (1, 'v', 'ok'), (2, 'ü', NULL);
UPDATE "Odd Schema"."Odd ""T.a,b" SET "sp ace" = 'w', "ID" = 3 WHERE "ID" = 1;
BEGIN; INSERT INTO by_key VALUES (100, 'kept', NULL); SAVEPOINT a; INSERT INTO by_key VALUES (101, 'lost', NULL); SAVEPOINT b; INSERT INTO by_key VALUES (102, 'lost', NULL); RELEASE b; ROLLBACK TO a; INSERT INTO by_key VALUES (103, 'kept', NULL); COMMIT;
SELECT pg_logical_emit_message(true, 'pfx', 'transactional ✓');
SELECT pg_logical_emit_message(false, 'pfx', 'between');
TRUNCATE by_index, whole;
BEGIN; INSERT INTO by_key SELECT g, 'first ' || g, md5(g::text) FROM generate_series(1000, 2499) g; SAVEPOINT outer_one; SAVEPOINT inner_one; INSERT INTO by_key SELECT g, 'lost', md5(g::text) FROM generate_series(2500, 3999) g; RELEASE inner_one; SAVEPOINT inner_two; UPDATE by_key SET a = 'lost' WHERE id BETWEEN 1000 AND 1999; ROLLBACK TO outer_one; INSERT INTO by_key SELECT g, 'second ' || g, NULL FROM generate_series(4000, 4999) g; SAVEPOINT last; DELETE FROM by_key WHERE id BETWEEN 1000 AND 1499; RELEASE last; COMMIT;
BEGIN; INSERT INTO by_key SELECT g, 'never', md5(g::text) FROM generate_series(6000, 8999) g; ROLLBACK;
INSERT INTO by_key VALUES (9999, 'end', NULL);
