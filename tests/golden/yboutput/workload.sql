-- What the recordings of this folder hold. "-- @setup" is run before the slot is made; every other name
-- starts a part that is read on its own. A line is a transaction.
-- @setup
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE by_change (id int PRIMARY KEY, name text, aura int, m mood);
CREATE TABLE by_default (LIKE by_change INCLUDING ALL);
CREATE TABLE by_full (LIKE by_change INCLUDING ALL);
CREATE TABLE by_nothing (LIKE by_change INCLUDING ALL);
CREATE TABLE evolves (id int PRIMARY KEY, a int, b text);
SELECT yb_replica_identity('by_change', 'CHANGE');
SELECT yb_replica_identity('by_default', 'DEFAULT');
SELECT yb_replica_identity('by_full', 'FULL');
SELECT yb_replica_identity('by_nothing', 'NOTHING');
SELECT yb_replica_identity('evolves', 'CHANGE');
-- @insert
INSERT INTO by_change VALUES (1, 'a', 10, 'ok'), (2, NULL, NULL, NULL);
INSERT INTO by_default VALUES (1, 'a', 10, 'ok'), (2, NULL, NULL, NULL);
INSERT INTO by_full VALUES (1, 'a', 10, 'ok'), (2, NULL, NULL, NULL);
INSERT INTO by_nothing VALUES (1, 'a', 10, 'ok');
-- @update
UPDATE by_change SET aura = 99 WHERE id = 1;
UPDATE by_change SET aura = NULL WHERE id = 1;
UPDATE by_change SET name = 'é', aura = 10, m = 'sad' WHERE id = 1;
UPDATE by_change SET m = NULL WHERE id = 1;
UPDATE by_default SET aura = 99 WHERE id = 1;
UPDATE by_full SET aura = NULL WHERE id = 1;
-- @update_key
UPDATE by_change SET id = 3, name = 'moved' WHERE id = 2;
UPDATE by_default SET id = 3 WHERE id = 2;
UPDATE by_full SET id = 3 WHERE id = 2;
-- @transaction
BEGIN; INSERT INTO by_change VALUES (4, 'd', 4, 'ok'); UPDATE by_change SET aura = 1 WHERE id = 4; DELETE FROM by_change WHERE id = 4; COMMIT;
-- @delete
DELETE FROM by_change WHERE id = 1;
DELETE FROM by_default WHERE id = 1;
DELETE FROM by_full WHERE id = 1;
-- @unsent
TRUNCATE by_default;
SELECT pg_logical_emit_message(true, 'p', 'x');
-- @evolution
INSERT INTO evolves VALUES (1, 1, 'x');
ALTER TABLE evolves ADD COLUMN z int DEFAULT 5;
UPDATE evolves SET a = 2;
ALTER TABLE evolves DROP COLUMN b;
UPDATE evolves SET z = 6;
