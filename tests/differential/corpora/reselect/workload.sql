UPDATE docs SET note = 'second' WHERE id = 1;
UPDATE docs SET note = NULL, body = 'short' WHERE id = 2;
UPDATE whole SET note = 'second' WHERE id = 1;
BEGIN;
UPDATE docs SET note = 'gone' WHERE id = 3;
DELETE FROM docs WHERE id = 3;
COMMIT;
UPDATE docs SET id = 5 WHERE id = 4;
INSERT INTO docs (id, kind) VALUES (6, 'new');
