INSERT INTO orders VALUES
    (1, 'ann', 'first', 12.50, '2026-03-29 00:30:00+00', '2026-03-29 02:30:00'),
    (2, DEFAULT, NULL, NULL, NULL, NULL);
UPDATE orders SET note = 'changed', amount = 13 WHERE id = 1;
UPDATE orders SET note = NULL WHERE id = 1;
UPDATE orders SET id = 3 WHERE id = 2;
DELETE FROM orders WHERE id = 1;
INSERT INTO shard_1 VALUES (1, 'a');
INSERT INTO shard_2 VALUES (1, 'b');
UPDATE shard_2 SET name = 'c';
DELETE FROM shard_1;
INSERT INTO keyless VALUES ('x', 1);
TRUNCATE keyless;
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, n) VALUES
    ('00000000-0000-4000-8000-000000000001', 'order', '7', 'created', '{"id": 7, "lines": [{"sku": "a", "n": 2}, {"sku": "b", "n": 1}], "note": null}', 0),
    ('00000000-0000-4000-8000-000000000002', 'customer', 'ann', 'renamed', '{"name": "Ann"}', 1),
    ('00000000-0000-4000-8000-000000000003', 'order', '7', 'deleted', NULL, 0);
UPDATE outbox SET type = 'never' WHERE n = 1;
DELETE FROM outbox;
INSERT INTO flags VALUES (1, B'100000001');
UPDATE flags SET b = b;
SELECT pg_logical_emit_message(true, 'p', '{"id": 1, "kind": "x", "more": [1, 2]}');
