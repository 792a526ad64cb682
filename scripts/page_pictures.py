"""Makes the pictures of the status page in docs/images, of a real run: PostgreSQL, a shop that is busy,
and Spark behind the change log.

.venv/bin/python -m scripts.page_pictures [--seconds 240] [--to docs/images]

It needs what `make setup-test` installs. The run is short, so its charts are minutes wide.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.servers.browser import browser
from tests.harness.servers.ports import free_ports
from tests.harness.servers.postgres import Cluster, Database

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
VIEWS = {
    "status-light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "status-dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "status-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
TABLES = """
CREATE TABLE customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text, city text);
CREATE TABLE products (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, price numeric(10,2));
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint, total
numeric(12,2), state text DEFAULT 'new', placed timestamptz DEFAULT now());
CREATE TABLE order_lines (order_id bigint, line int, product bigint, amount int, PRIMARY KEY (order_id,
line)); CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint, paid
numeric(12,2)); INSERT INTO customers (email, city) SELECT 'c' || n || '@example.org', 'city ' || n % 40
FROM generate_series(1, 20000) n; INSERT INTO products (name, price) SELECT 'product ' || n, n % 900 + 0.99
FROM generate_series(1, 3000) n; INSERT INTO orders (customer, total) SELECT n % 20000 + 1, n % 500 FROM
generate_series(1, 60000) n;
"""
ORDER = """
WITH made AS (INSERT INTO orders (customer, total) SELECT (random() * 19999)::int + 1, (random() *
500)::numeric(12,2) FROM generate_series(1, {orders}) RETURNING id),
  lines AS (INSERT INTO order_lines SELECT id, n, (random() * 2999)::int + 1, n FROM made,
  generate_series(1, 3) n) INSERT INTO payments (order_id, paid) SELECT id, 10 FROM made;
UPDATE orders SET state = 'sent' WHERE id IN (SELECT id FROM orders WHERE state = 'new' LIMIT {orders});
DELETE FROM payments WHERE id IN (SELECT id FROM payments ORDER BY id LIMIT {deletes});
"""


class Shop:
    """Writes as a shop would, more and less, until it is ended."""

    def __init__(self, database: Database) -> None:
        self._database, self._end = database, threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        chance, busy, step = random.Random(7), 20.0, 0
        with self._database.connect(autocommit=True) as link:
            while not self._end.wait(0.25):
                step += 1
                busy = min(90.0, max(4.0, busy + chance.uniform(-7, 7)))
                burst = 8 if step % 120 in range(60, 66) else 1
                text = ORDER.format(orders=int(busy * burst), deletes=int(busy / 8))
                link.execute(text.encode())

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join(30)


def profile(database: Database, folder: Path, sink: str) -> Path:
    """Write the profile of the run."""
    source = database.properties() | {"slot.name": "shop", "publication.name": "shop"}
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in source.items()]
    file = folder / "shop.toml"
    head = 'name = "shop"\n[source]\ntype = "postgres"\n"waltap.wal.budget" = "2GB"\n'
    file.write_text(head + "\n".join(lines) + f'\n[sink]\ntype = "{sink}"\npath = "lake"\n')
    return file


def status(port: int) -> dict[str, Any]:
    """Return the status, {} while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=30) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}


def pictures(port: int, to: Path) -> None:
    """Make a picture of each view."""
    to.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        for name, view in VIEWS.items():
            page = chromium.new_page(device_scale_factor=2 if "phone" in name else 1.25, **view)
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("#tables tr")
            page.wait_for_timeout(2500)
            page.screenshot(path=to / f"{name}.png", full_page="phone" not in name)
            page.close()


def main() -> None:
    """Run, wait, and take pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--to", type=Path, default=IMAGES)
    parser.add_argument("--sink", default="spark", choices=["spark", "changelog"])
    asked = parser.parse_args()
    server, (port,) = Cluster.create(), free_ports(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            database = server.create_database("shop")
            database.psql(TABLES)
            file = profile(database, Path(folder), asked.sink)
            command = [sys.executable, "-m", "waltap", "run", str(file), f"--http=127.0.0.1:{port}"]
            with subprocess.Popen(command, cwd=folder) as run:
                try:
                    while status(port).get("state") != "streaming":
                        time.sleep(0.5)
                    with Shop(database).writing():
                        time.sleep(asked.seconds * 0.8)
                        database.execute("ALTER TABLE customers ADD COLUMN phone text")
                        database.execute("UPDATE customers SET phone = '0' WHERE id < 50")
                        database.execute("ALTER TABLE orders ALTER COLUMN total TYPE numeric(14,2)")
                        time.sleep(asked.seconds * 0.1)
                        database.execute(
                            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                        )
                        time.sleep(asked.seconds * 0.1)
                        pictures(port, asked.to)
                finally:
                    run.terminate()
                    run.wait(120)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
