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


# Two fifths of the changes insert, two fifths update the rows before, a fifth deletes older ones.
MIX = """
DO $$
BEGIN
  FOR start_id IN {first}..{last} BY {some} * 2 LOOP
    INSERT INTO public.bench
      SELECT made.*
      FROM public.bench old, jsonb_populate_record(old, jsonb_build_object('id', old.id + {some} * 2)) made
      WHERE old.id BETWEEN start_id - {some} * 2 AND start_id - 1;
    UPDATE public.bench
      SET amount = amount + 1, note = reverse(note), changed_at = changed_at + interval '1 day'
      WHERE id BETWEEN start_id - {some} * 2 AND start_id - 1;
    DELETE FROM public.bench WHERE id BETWEEN start_id - {some} * 4 AND start_id - {some} * 3 - 1;
    COMMIT;
  END LOOP;
END $$
"""


def fill_and_change(
    connection: psycopg.Connection[Any], low: int, changes: int, per_transaction: int
) -> None:
    """Commit exactly ``changes`` inserts, updates and deletes, ``per_transaction`` (a multiple of five).

    Old rows are written whole. The first transactions insert rows from ``low`` on, for the others.
    """
    some = per_transaction // 5
    connection.execute("ALTER TABLE public.bench REPLICA IDENTITY FULL")
    first = low + 4 * some
    fill(connection, low, first - 1, 4 * some)
    transactions, rest = divmod(changes - 4 * some, per_transaction)
    last = first + transactions * 2 * some - 1
    connection.execute(MIX.format(first=first, last=last, some=some))
    if rest:
        fill(connection, last + 1, last + rest, rest)
