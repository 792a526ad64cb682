"""The output plugin ``yboutput`` of the tests: built once per run, and found by a server.

A server finds the library through ``dynamic_library_path`` of a database, so nothing is installed.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from psycopg import sql
from tests.harness.servers.jars import locked
from tests.harness.servers.postgres import Database, Server, Unavailable, server_programs

SOURCE = Path(__file__).parent / "yboutput"
MAJOR_VERSION = 15
"""The version that the source is written against."""

PACKAGES = f"packages postgresql-server-dev-{MAJOR_VERSION}, gcc, make"
RECORD = "yboutput"


def built(state: Path) -> Path:
    """Return the folder with ``yboutput.so``, built by the first who asks; processes meet in ``state``.

    Raises: Unavailable without compiler or headers; AssertionError with the compiler's words when
    it does not build.
    """
    with locked(state / "lock"):
        record = state / RECORD
        if not record.exists():
            record.write_text(str(_build(_pg_config())))
        return Path(record.read_text())


def remove(state: Path) -> None:
    """Delete what `built` built with this ``state``."""
    record = state / RECORD
    if record.exists():
        shutil.rmtree(record.read_text(), ignore_errors=True)


def loadable(server: Server, folder: Path) -> bool:
    """Return whether ``server`` is of the library's version and sees our files."""
    if server.version // 10000 != MAJOR_VERSION:
        return False
    library = str(folder / "yboutput.so")
    query = sql.SQL("SELECT (pg_stat_file({}, true)).size").format(library)
    return server.execute(query)[0][0] is not None


def prepare(database: Database, folder: Path) -> None:
    """Let slots of ``database`` use ``yboutput``, and define ``yb_replica_identity`` in it."""
    database.execute(
        sql.SQL("ALTER DATABASE {} SET dynamic_library_path = {}").format(
            sql.Identifier(database.name), f"{folder}:$libdir"
        )
    )
    database.execute((SOURCE / "identity.sql").read_text())


def _pg_config() -> str:
    """Return the ``pg_config`` of a complete development package of the right version."""
    for program in (str(server_programs() / "pg_config"), shutil.which("pg_config")):
        if program is None or not Path(program).exists():
            continue
        if _ask(program, "--version").split()[1].partition(".")[0] != str(MAJOR_VERSION):
            continue
        headers = Path(_ask(program, "--includedir-server")) / "postgres.h"
        if headers.exists() and Path(_ask(program, "--pgxs")).exists():
            for tool in ("make", _ask(program, "--cc").split()[0]):
                if shutil.which(tool) is None:
                    raise Unavailable(f"no {tool} to build the output plugin with ({PACKAGES})")
            return program
    raise Unavailable(f"no headers of PostgreSQL {MAJOR_VERSION} ({PACKAGES})")


def _ask(pg_config: str, option: str) -> str:
    answer = subprocess.run([pg_config, option], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def _build(pg_config: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="waltap-yboutput-"))
    folder.chmod(0o755)  # the server may run as another user
    for name in ("yboutput.c", "Makefile"):
        shutil.copy(SOURCE / name, folder)
    done = subprocess.run(
        ["make", "-C", folder, f"PG_CONFIG={pg_config}", "COPT=-Werror"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise AssertionError(f"yboutput does not build:\n{done.stdout[-4000:]}")
    return folder
