"""The collector of cycles: rare in the command's process, left alone where waltap is a library."""

import subprocess
import sys

import pytest

SHOW = "import atexit, gc, sys; atexit.register(lambda: print('young', gc.get_threshold()[0]))\n"
COMMAND = "sys.argv = ['waltap', '--version']\nfrom waltap.cli import main\nmain()"
LIBRARY = "import waltap, waltap.cli.application, waltap.pipeline.engine"


@pytest.mark.parametrize(("code", "rare"), [(COMMAND, True), (LIBRARY, False)])
def test_the_collector_is_set_by_the_command_alone(code: str, *, rare: bool) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SHOW + code], capture_output=True, text=True, timeout=60, check=True
    )
    young = int(found.stdout.split()[-1])
    assert (young > 10_000) is rare
