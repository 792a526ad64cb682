"""The pytest plugin is loaded in every run where waltap is installed: it must cost nothing."""

import os
import sys

from tests.harness.command import run_program

HEAVY = ("hypothesis", "msgspec", "orjson", "psycopg", "pyarrow", "pydantic", "pyspark", "typer")


def test_loading_it_imports_nothing_heavy():
    code = (
        "import sys, pytest; before = set(sys.modules); import waltap_testing.pytest_plugin;"
        f"print([name for name in {HEAVY!r} if name in set(sys.modules) - before])"
    )
    assert run_program(sys.executable, "-c", code).stdout.strip() == "[]"


def run(folder, text, *options):
    (folder / "test_it.py").write_text(text)
    command = sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-q"
    options = "-p", "no:cacheprovider", *options, folder / "test_it.py"
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return run_program(*command, *options, code=None, cwd=folder, env=env)


FINDING = "def test_a(record_property): record_property('waltap', 'sink x: found')\n"
WRONG = """
import socket
from waltap_testing import DecoderSuite

class TestX(DecoderSuite): pass

def test_positions_never_go_back_here(walsender):
    server = walsender()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(bytes([255]) * 8)
        server.wait(lambda s: s.sessions and s.sessions[0].ended)
"""


def test_findings_are_printed_once_at_the_end_and_what_is_wrong_is_reported(tmp_path):
    """A class without its fixture is reported which; a script that is not followed fails its test.

    ``-p`` makes pytest rewrite the kit's assertions, as it does where a wheel of it is installed.
    """
    chosen = "test_a or test_b or test_positions_never_go_back"
    ran = run(tmp_path, FINDING + "test_b = test_a\n" + WRONG, "-k", chosen, "-p", "waltap_testing")
    assert ran.returncode == 1, ran.stdout
    assert ran.stdout.count("sink x: found") == 1
    assert "waltap conformance" in ran.stdout
    assert "TestX must define the fixture 'rig' (a DecoderRig)" in ran.stdout
    assert "the client sent what no client sends" in ran.stdout
    assert "3 passed" in ran.stdout
    assert "2 errors" in ran.stdout


def test_findings_of_workers_are_printed_too(tmp_path):
    assert "sink x: found" in run(tmp_path, FINDING, "-n", "1").stdout
