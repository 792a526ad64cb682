"""The table that is measured: twelve columns of mixed types, filled in transactions of a set size."""

from typing import Any

import psycopg

TABLE = "public.bench"
EMPTY = "public.bench_empty"

COLUMNS = """
    id integer PRIMARY KEY,
    account bigint NOT NULL,
    name text,
    note text,
    amount numeric(10,2),
    active boolean,
    placed_at timestamp,
    changed_at timestamptz,
    due date,
    score double precision,
    reference uuid,
    attributes jsonb
"""

# a procedure's block commits after every transaction's rows; random() is seeded: the same rows each run
FILL = """
DO $$
BEGIN
  PERFORM setseed(0.42);
  FOR start_id IN {low}..{high} BY {per_transaction} LOOP
    INSERT INTO public.bench SELECT
      n,
      n * 1000003::bigint,
      'customer ' || n,
      repeat(md5(n::text), 1 + n % 3),
      round((random() * 100000)::numeric, 2),
      n % 3 <> 0,
      timestamp '2020-01-01' + n * interval '61.000123 seconds',
      timestamptz '2020-01-01 00:00:00+00' + n * interval '37.000456 seconds',
      date '2015-01-01' + n % 4000,
      random() * 1e6,
      md5(n::text)::uuid,
      jsonb_build_object('n', n, 'tags', jsonb_build_array('a', n % 7), 'ok', n % 2 = 0)
    FROM generate_series(start_id, least(start_id + {per_transaction} - 1, {high})) n;
    COMMIT;
  END LOOP;
END $$
"""


def make_tables(connection: psycopg.Connection[Any]) -> None:
    """Create the measured table, and an empty one of the same shape."""
    connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
    connection.execute(f"CREATE TABLE {EMPTY} ({COLUMNS})")


def fill(
    connection: psycopg.Connection[Any], low: int, high: int, per_transaction: int = 1000
) -> None:
    """Insert rows ``low`` to ``high``; the connection must be in autocommit."""
    connection.execute(FILL.format(low=low, high=high, per_transaction=per_transaction))
