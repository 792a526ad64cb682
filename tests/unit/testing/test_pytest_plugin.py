"""The pytest plugin is loaded in every run where waltap is installed: it must cost nothing."""

import os
import subprocess
import sys

HEAVY = ("hypothesis", "msgspec", "orjson", "psycopg", "pyarrow", "pydantic", "pyspark", "typer")


def test_loading_it_imports_nothing_heavy():
    code = (
        "import sys, pytest; before = set(sys.modules); import waltap_testing.pytest_plugin;"
        f"print([name for name in {HEAVY!r} if name in set(sys.modules) - before])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def run(folder, text, *options):
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-q"]
        + ["-p", "no:cacheprovider", *options, str(folder / "test_it.py")],
        capture_output=True,
        text=True,
        cwd=folder,
    )


def test_findings_are_printed_once_at_the_end(tmp_path):
    text = (
        "def test_a(record_property): record_property('waltap', 'sink x: found')\ntest_b = test_a\n"
    )
    ran = run(tmp_path, text)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("sink x: found") == 1
    assert "waltap conformance" in ran.stdout


def test_findings_of_workers_are_printed_too(tmp_path):
    text = "def test_a(record_property): record_property('waltap', 'sink x: found')\n"
    assert "sink x: found" in run(tmp_path, text, "-n", "1").stdout


def test_without_findings_nothing_is_printed(tmp_path):
    assert "waltap" not in run(tmp_path, "def test_a(): pass\n").stdout


def test_a_class_without_its_fixture_is_told_which(tmp_path):
    text = (
        "from waltap_testing.decoder_suite import DecoderSuite\nclass TestX(DecoderSuite): pass\n"
    )
    ran = run(tmp_path, text, "-k", "test_positions_never_go_back")
    assert "TestX must define the fixture 'rig' (a DecoderRig)" in ran.stdout


def test_a_script_that_is_not_followed_fails_its_test(tmp_path):
    text = (
        "import socket\n"
        "def test_a(walsender):\n"
        "    server = walsender()\n"
        "    with socket.create_connection(('127.0.0.1', server.port)) as client:\n"
        "        client.sendall(b'\\xff' * 8)\n"
        "        server.wait(lambda s: s.sessions and s.sessions[0].ended)\n"
    )
    ran = run(tmp_path, text)
    assert ran.returncode == 1, ran.stdout
    assert "the client sent what no client sends" in ran.stdout
