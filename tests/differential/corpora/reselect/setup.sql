CREATE TABLE docs (
    id integer NOT NULL,
    kind char(4) NOT NULL,
    body text,
    data bytea,
    meta jsonb,
    numbers integer[],
    note text,
    seen text DEFAULT 'never',
    PRIMARY KEY (kind, id)
);
ALTER TABLE docs ALTER body SET STORAGE EXTERNAL, ALTER data SET STORAGE EXTERNAL,
    ALTER meta SET STORAGE EXTERNAL, ALTER numbers SET STORAGE EXTERNAL;
CREATE TABLE whole (LIKE docs INCLUDING ALL);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO docs SELECT id, 'a', repeat('body ' || id, 400), decode(repeat('00ff', 1100), 'hex'),
    jsonb_build_object('k', repeat('v', 2100)), array_agg(n), 'first', NULL
    FROM generate_series(1, 4) AS id, generate_series(1, 550) AS n GROUP BY id;
INSERT INTO whole SELECT * FROM docs;
