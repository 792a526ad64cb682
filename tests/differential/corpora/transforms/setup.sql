CREATE TABLE orders (
    id integer PRIMARY KEY,
    customer text NOT NULL DEFAULT 'nobody',
    note text DEFAULT 'none',
    amount numeric(9, 2),
    placed timestamptz,
    seen timestamp(3)
);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE shard_1 (id integer PRIMARY KEY, name text);
CREATE TABLE shard_2 (id integer PRIMARY KEY, name text);
CREATE TABLE keyless (name text, n integer);
CREATE TABLE outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    at timestamp NOT NULL DEFAULT '2026-01-01 00:00:00.5',
    n integer
);
CREATE TABLE flags (id integer PRIMARY KEY, b bit(9));
ALTER TABLE flags REPLICA IDENTITY FULL;
