"""The harness's servers keep their own promises: those that no test would fail for, but pass in vain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
from tests.harness.pipeline import until

CHILD = """
import pathlib, sys, time
from tests.harness.servers.child import Child
child = Child(['sleep', '600'], pathlib.Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_slot_still_streamed_from_is_reported_as_leaked(server):
    made = server.create_database("waltap_servers_leak")
    made.execute(
        "SELECT pg_create_logical_replication_slot('waltap_servers_leak', 'test_decoding')"
    )
    stream = psycopg.pq.PGconn.connect(f"{made.dsn}?replication=database".encode())
    stream.exec_(b"START_REPLICATION SLOT waltap_servers_leak LOGICAL 0/0")
    assert made.drop(patience=0.2) == ["waltap_servers_leak"]
    stream.finish()


def test_a_server_dies_with_a_test_run_that_is_killed(tmp_path):
    root = str(Path(__file__).parents[2])
    run = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "log")],
        stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert run.stdout is not None
    server = psutil.Process(int(run.stdout.readline()))
    until(lambda: server.name() == "sleep", "the server: it has asked to die by then")
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    psutil.wait_procs([server], timeout=90)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
