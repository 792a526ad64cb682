"""SIGINT while modules are loaded ends the process, and prints nothing."""

import subprocess
import sys

import pytest

INTERRUPTED = """
import builtins, os, signal, sys
load, wanted = builtins.__import__, sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
def load_and_interrupt(name, *rest, **more):
    if name == wanted:
        builtins.__import__ = load
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *rest, **more)
builtins.__import__ = load_and_interrupt
from waltap.cli import main
main()
"""


@pytest.mark.parametrize(
    "module", ["waltap.cli.application", "typer", "waltap.errors", "waltap.plugins.host"]
)
def test_no_traceback_of_an_import(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "plugins"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
