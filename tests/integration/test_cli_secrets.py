"""No password reaches the screen, a log or a listing, in whatever form it was given."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import command

SECRET = "sEsAm/o1#"
QUOTED = "sEsAm%2Fo1%23"
PIECES = ("sEsAm", "o1#", "o1%23")
"""None of these may be seen: a message that quotes half of a torn URI tells enough."""

PROFILE = """
[source]
type = "postgres"
"database.hostname" = "127.0.0.1"
"database.port" = 1
"database.dbname" = "nowhere"
[sink]
type = "terminal"
"""


waltap = functools.partial(command.waltap, WALTAP_TRACEBACK="1")


def untold(answer: subprocess.CompletedProcess[str], *words: str) -> None:
    text = answer.stdout + answer.stderr
    for piece in PIECES:
        assert piece not in text, text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param(f"postgres://u@127.0.0.1:1/d?password={QUOTED}", id="query"),
        pytest.param(f"postgres://u:{QUOTED}@127.0.0.1:1/d", id="userinfo"),
        pytest.param(f"postgres://u@127.0.0.1:1/d?sslpassword={QUOTED}", id="sslpassword"),
        pytest.param(f"postgres://u@127.0.0.1:1/d?password={QUOTED}&slot=1", id="and-a-mistake"),
        pytest.param(f"postgres://u@127.0.0.1:1/d?password={QUOTED}&sslmode=no", id="wrong-value"),
        pytest.param(f"postgres://u:{SECRET}@127.0.0.1:1/d", id="not-encoded"),
        pytest.param(f"postgres://127.0.0.1:x/d?password={QUOTED}", id="wrong-port"),
        pytest.param(f"postgres:/u:{SECRET}@127.0.0.1:1/d", id="one-slash"),
        pytest.param(f"postgrs://u:{QUOTED}@127.0.0.1:1/d", id="unknown-database"),
        pytest.param(f"host=127.0.0.1 dbname=d password={SECRET}", id="key-value"),
        pytest.param(f"host=127.0.0.1 dbname=d password = '{SECRET} x'", id="key-value-quoted"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "doctor", "tail"])
def test_a_password_in_a_connection_string(command: str, uri: str, tmp_path: Path) -> None:
    untold(waltap(command, uri, cwd=tmp_path))


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(f"database.password={SECRET}", id="password"),
        pytest.param(f"database.sslpassword={SECRET}", id="sslpassword"),
        pytest.param(f"driver.password={SECRET}", id="libpq"),
        pytest.param(f"driver.scram_client_key={SECRET}", id="scram-key"),
        pytest.param(f"database.pasword={SECRET}", id="misspelt"),
        pytest.param(f"database.password {SECRET}", id="no-equals-sign"),
        pytest.param(f"some.url=http://ann:{SECRET}@h/", id="url"),
        pytest.param(f"database.port=x?password={SECRET}", id="in-another-value"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "run"])
def test_a_password_in_a_property(command: str, setting: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROFILE)
    untold(waltap(command, "p.toml", "--set", setting, cwd=tmp_path))


def test_a_password_by_a_placeholder_and_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "word").write_text(SECRET)
    (tmp_path / "p.toml").write_text(
        PROFILE.replace(
            "[sink]",
            '"database.password" = "${file:word}"\n"slot.name" = "${env:SESAME}"\n"no.such" = "1"\n[sink]',
        )
    )
    untold(waltap("explain", "p.toml", cwd=tmp_path, SESAME=SECRET), "slot.name", "no.such")


RAISING = """
from waltap.hookspecs import hookimpl
from waltap.specs import SinkSpec
from waltap.errors import SinkError
import logging

class Unreachable(SinkError):
    code = "WT-5999"
    remedy = "Check the password {password}."

def factory(properties, context):
    logging.getLogger("waltap.x").warning("connecting with %s", "sEsAm/o1#")
    try:
        raise OSError("token=sEsAm/o1# refused")
    except OSError as cause:
        raise Unreachable("http://u:sEsAm/o1#@h refused", password="sEsAm/o1#") from cause

@hookimpl
def register_sinks():
    return [SinkSpec(name="raising", summary="Raises.", factory=factory)]
"""


def test_a_plugin_that_tells_a_password_in_an_error_or_a_log(tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    info = tmp_path / "raising-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raising\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[waltap]\nraising = raising\n")
    (tmp_path / "p.toml").write_text(
        PROFILE.replace("[sink]", '"database.password" = "${env:SESAME}"\n[sink]').replace(
            '"terminal"', '"raising"'
        )
    )
    answer = waltap("run", "p.toml", cwd=tmp_path, SESAME=SECRET, PYTHONPATH=str(tmp_path))
    untold(answer, "WT-5999", "connecting with ***", "http://u:***@h refused")


def test_a_new_profile_holds_names_of_variables_in_place_of_secrets(tmp_path: Path) -> None:
    uri = f"postgres://u:{QUOTED}@h/d?sslpassword={QUOTED}&target_session_attrs=any"
    untold(waltap("init", "p.toml", "--dsn", uri, "--sink", "jsonl:-", cwd=tmp_path))
    text = (tmp_path / "p.toml").read_text()
    assert not [piece for piece in PIECES if piece in text]
    assert '"database.password" = "${env:WALTAP_PASSWORD}"' in text
    assert '"database.sslpassword" = "${env:WALTAP_SSLPASSWORD}"' in text
    assert '"driver.target_session_attrs" = "any"' in text
    for name in ("mine", "${env:MINE}"):
        sink = f"sql:postgresql://app:{name}@h/warehouse"
        told = waltap("init", "q.toml", "--force", "--dsn", uri, "--sink", sink, cwd=tmp_path)
        text = (tmp_path / "q.toml").read_text()
        assert ":mine@" not in text
        assert ("WALTAP_SINK_PASSWORD" in told.stdout) == (name == "mine")
    assert '"url" = "postgresql://app:${env:MINE}@h/warehouse"' in text
