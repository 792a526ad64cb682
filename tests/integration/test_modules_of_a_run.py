"""A run loads the modules that its pipeline uses, and none of other plugins."""

import json
import subprocess
import sys
from pathlib import Path

from tests.harness.servers.postgres import Database

PROGRAM = """
import json, sys
from waltap.cli import main
sys.argv = ["waltap", "run", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules)]))
"""
MOST = 325
"""Modules of ours: 316 when this was written. Each costs a start about a millisecond."""

UNUSED = {"demo", "formats", "kafka", "lake", "spark", "streams", "transforms"}


def test_a_snapshot_into_lines_loads_no_other_plugin(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO item SELECT n, 'x' FROM generate_series(1, 1000) n")
    source = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "shop",
        "snapshot.mode": "initial_only",
        "plugin.name": "pgoutput",
        "waltap.state.dir": str(tmp_path / "state"),
        **database.properties(),
    }
    profile, lines = tmp_path / "shop.properties", tmp_path / "lines.jsonl"
    profile.write_text("".join(f"{name}={value}\n" for name, value in source.items()))
    command = [sys.executable, "-c", PROGRAM, str(profile), "--sink", f"jsonl:{lines}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert (code, lines.read_bytes().count(b"\n")) == (0, 1000), done.stderr
    for plugin in UNUSED:
        ours = {name for name in modules if name.partition(".")[0] == f"waltap_{plugin}"}
        assert ours <= {f"waltap_{plugin}", f"waltap_{plugin}.plugin"}
    assert not {"pyspark", "pandas", "sqlalchemy", "confluent_kafka"} & set(modules)
    assert not {"pyarrow", "numpy"} & set(modules), "a thousand rows are quicker without"
    found = sum(name.partition(".")[0].startswith("waltap") for name in modules)
    assert found <= MOST
