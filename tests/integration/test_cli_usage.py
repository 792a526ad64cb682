"""The command line without a database: help, exit codes, what errors look like."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.command import waltap

HEAVY = ("pyarrow", "pyspark", "psycopg", "confluent_kafka", "pandas", "numpy", "sqlalchemy")


PROFILE = """
[source]
type = "postgres"
database.hostname = "127.0.0.1"
database.port = 1
database.dbname = "nowhere"
[sink]
type = "terminal"
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "shop.toml"
    path.write_text(PROFILE)
    return str(path)


# --- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=["none", "help", "h"])
def test_help_lists_every_command(arguments: tuple[str, ...]) -> None:
    answer = waltap(*arguments)
    for command in (
        "init",
        "doctor",
        "explain",
        "run",
        "tail",
        "signal",
        "status",
        "top",
        "offsets",
        "slot",
        "drop",
    ):
        assert f" {command} " in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    "command",
    [
        "init",
        "doctor",
        "explain",
        "run",
        "tail",
        "signal",
        "status",
        "top",
        "offsets",
        "slot",
        "plugins",
        "docs",
    ],
)
def test_every_command_has_help(command: str) -> None:
    answer = waltap(command, "--help")
    assert answer.returncode == 0
    assert f"waltap {command}" in answer.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plugins"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['waltap', *{arguments!r}]\n"
        "from waltap.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    code = end.code\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], code)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.splitlines()[-1] in {"HEAVY [] 0", "HEAVY [] None"}, answer.stderr


def test_the_version_is_told() -> None:
    answer = waltap("--version")
    assert answer.stdout.startswith("waltap 0.")


# --- exit codes and errors -------------------------------------------------------------------------


def no_traceback(answer: subprocess.CompletedProcess[str]) -> str:
    text = answer.stdout + answer.stderr
    assert "Traceback" not in text
    return " ".join(text.split())


def test_a_bad_profile_ends_with_2_and_lists_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('[source]\ntype = "postgres"\nslot.nam = "x"\n[sink]\ntype = "terminla"\n')
    answer = waltap("run", str(path))
    text = no_traceback(answer)
    assert answer.returncode == 2
    assert "WT-1001" in text
    assert "has 3 problems" in text
    for words in (
        "slot.nam is not known; given: x; did you mean slot.name?",
        "did you mean terminal?",
        "database.dbname is required",
        "waltap explain FILE",
    ):
        assert words in text


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["run", "absent.toml"], id="file-missing"),
        pytest.param(["run"], id="argument-missing"),
        pytest.param(["run", "x.toml", "--until-idle", "soon"], id="not-a-number"),
        pytest.param(["nonsense"], id="no-such-command"),
        pytest.param(["tail", "mysql://host/db"], id="unknown-database"),
        pytest.param(["doctor", "postgres://host:port/db"], id="bad-uri"),
    ],
)
def test_bad_usage_ends_with_2(arguments: list[str], tmp_path: Path) -> None:
    answer = waltap(*arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert no_traceback(answer)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--set", "novalue"], "--set is not NAME=VALUE", id="set"),
        pytest.param(["--until-lsn", "7"], "--until-lsn is not an LSN; given: 7", id="lsn"),
        pytest.param(["--sink", "jsnol:x"], "--sink no sink is called 'jsnol'", id="sink"),
    ],
)
def test_bad_options_say_what_is_wrong(profile: str, options: list[str], words: str) -> None:
    answer = waltap("run", profile, *options)
    assert answer.returncode == 2
    assert words in no_traceback(answer)


def test_an_unreachable_database_ends_with_3_and_says_what_mends_it(profile: str) -> None:
    answer = waltap("run", profile)
    text = no_traceback(answer)
    assert answer.returncode == 3
    assert "WT-2002" in text
    assert "database.hostname" in text


def test_logs_off_a_terminal_are_json_lines(profile: str) -> None:
    answer = waltap("run", profile)
    lines = [json.loads(line) for line in answer.stderr.splitlines() if line.startswith("{")]
    assert lines
    assert {"ts", "level", "logger", "message"} <= set(lines[0])
    assert any(line.get("error_code") == "WT-2002" for line in lines)
    quiet = waltap("run", profile, WALTAP_LOG="text", WALTAP_LOG_LEVEL="error")
    assert not [line for line in quiet.stderr.splitlines() if line.startswith("{")]


def test_a_traceback_is_shown_when_it_is_asked_for(profile: str) -> None:
    answer = waltap("run", profile, WALTAP_TRACEBACK="1")
    assert "Traceback" in answer.stderr
    assert answer.returncode == 3


def test_a_plugins_command_that_raises_is_told_as_its_fault(tmp_path: Path) -> None:
    plugin(tmp_path, "def crash():\n    '''Crash.'''\n    raise RuntimeError('boom')\n", "crash")
    answer = waltap("crash", PYTHONPATH=str(tmp_path))
    text = no_traceback(answer)
    assert answer.returncode == 1
    assert "WT-1108" in text
    assert "plugin 'acme' of acme 1.0 raised RuntimeError: boom" in text
    assert "report it" in text


def plugin(folder: Path, function: str, name: str) -> None:
    """Install a plugin with one command into ``folder``."""
    (folder / "acme_commands.py").write_text(
        "from waltap.hookspecs import hookimpl\n"
        "from waltap.specs import CommandSpec\n"
        f"{function}\n"
        "@hookimpl\n"
        "def register_commands():\n"
        f"    return [CommandSpec(name='{name}', summary='s', factory=lambda: {name})]\n"
    )
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[waltap]\nacme = acme_commands\n")


def test_a_command_of_a_plugin_is_listed_and_runs(tmp_path: Path) -> None:
    plugin(
        tmp_path, "def greet(name: str):\n    '''Say hello.'''\n    print('hello', name)\n", "greet"
    )
    assert "greet" in waltap("--help", PYTHONPATH=str(tmp_path)).stdout
    assert "Say hello." in waltap("greet", "--help", PYTHONPATH=str(tmp_path)).stdout
    assert waltap("greet", "ann", PYTHONPATH=str(tmp_path)).stdout == "hello ann\n"


def test_a_plugin_whose_command_cannot_be_made_spares_the_help(tmp_path: Path) -> None:
    plugin(tmp_path, "def broken():\n    pass\n", "broken")
    module = tmp_path / "acme_commands.py"
    module.write_text(module.read_text().replace("lambda: broken", "lambda: 1 / 0"))
    assert waltap("--help", PYTHONPATH=str(tmp_path)).returncode == 0
    answer = waltap("broken", PYTHONPATH=str(tmp_path))
    text = no_traceback(answer)
    assert answer.returncode == 2
    assert "WT-1103 hook raised" in text
    assert "command 'broken' of acme 1.0 cannot be made: ZeroDivisionError" in text


def test_demo_without_its_plugin_says_what_to_install() -> None:
    answer = waltap("demo", WALTAP_PLUGINS="postgres")
    assert answer.returncode == 1
    assert "pip install 'waltap[demo]'" in no_traceback(answer)


# --- plugins, explain, init ------------------------------------------------------------------------


def test_plugins_lists_distribution_version_health_and_what_is_provided() -> None:
    listed = json.loads(waltap("plugins", "--json").stdout)
    (postgres,) = [p for p in listed if p["distribution"] == "waltap-postgres"]
    assert postgres["health"] == "ok"
    assert postgres["provides"]["connectors"] == ["postgres"]
    table = waltap("plugins").stdout
    for words in ("waltap-postgres", "connectors: postgres", "ok"):
        assert words in table


def test_plugins_shows_why_one_cannot_be_used(tmp_path: Path) -> None:
    plugin(tmp_path, "import not_there_at_all", "x")
    answer = waltap("plugins", PYTHONPATH=str(tmp_path))
    text = " ".join(answer.stdout.split())
    assert answer.returncode == 0
    assert "failed to import" in text
    assert "WT-1105" in text
    assert "not_there_at_all" in text


def test_explain_shows_values_origins_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(PROFILE.replace("[sink]", 'database.password = "geheim"\n[sink]'))
    table = waltap("explain", str(path))
    assert table.returncode == 0
    assert "geheim" not in table.stdout + table.stderr
    rows = {e["name"]: e for e in json.loads(waltap("explain", str(path), "--json").stdout)}
    assert rows["database.password"]["value"] == "***"
    assert rows["database.dbname"] == {
        "name": "database.dbname",
        "value": "nowhere",
        "origin": f"{path} [source]",
        "component": "connector postgres",
        "meaning": rows["database.dbname"]["meaning"],
        "allowed": "",
        "unit": None,
        "reloadable": False,
    }
    given = json.loads(waltap("explain", str(path), "--json", "--given").stdout)
    assert {e["origin"] for e in given} <= {f"{path} [source]", f"{path} [sink]", "name"}


def test_explain_takes_a_dsn_and_hides_its_password() -> None:
    uri = "postgresql://ann:geheim@db.example:6000/shop?sslmode=require&target_session_attrs=any"
    answer = waltap("explain", uri, "--sink", "terminal", "--json")
    rows = {e["name"]: e["value"] for e in json.loads(answer.stdout)}
    assert {
        "database.hostname": "db.example",
        "database.port": "6000",
        "database.user": "ann",
        "database.password": "***",
        "database.dbname": "shop",
        "database.sslmode": "require",
        "driver.target_session_attrs": "any",
    }.items() <= rows.items()
    assert "geheim" not in answer.stdout + answer.stderr


def test_init_writes_a_profile_that_explains_itself(tmp_path: Path) -> None:
    uri = "postgres://ann:geheim@db.example:6000/shop"
    answer = waltap("init", "shop.toml", "--dsn", uri, "--sink", "terminal:40", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    text = (tmp_path / "shop.toml").read_text()
    assert "geheim" not in text + answer.stdout
    assert "export WALTAP_PASSWORD" in answer.stdout
    assert max(map(len, text.splitlines())) <= 100
    explained = waltap("explain", "shop.toml", "--json", cwd=tmp_path, WALTAP_PASSWORD="x")
    rows = {e["name"]: e["value"] for e in json.loads(explained.stdout)}
    assert rows["database.hostname"] == "db.example"
    assert rows["sink.width"] == "40"
    assert rows["topic.prefix"] == "shop"


def test_every_line_that_init_comments_out_is_valid_when_used(tmp_path: Path) -> None:
    waltap("init", "p.toml", "--dsn", "postgres://host/db", "--sink", "terminal", cwd=tmp_path)
    text = (tmp_path / "p.toml").read_text()
    lines = [
        line.removeprefix("# ")
        if line.startswith('# "') and not line.endswith(('= ""', "= []", '"${env:NAME}"'))
        else line
        for line in text.splitlines()
    ]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    answer = waltap("explain", "all.toml", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_init_never_replaces_a_file_unasked(tmp_path: Path) -> None:
    (tmp_path / "waltap.toml").write_text("mine")
    arguments = ["init", "--dsn", "postgres://host/db", "--sink", "terminal"]
    answer = waltap(*arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert "--force" in answer.stderr
    assert (tmp_path / "waltap.toml").read_text() == "mine"
    assert waltap(*arguments, "--force", cwd=tmp_path).returncode == 0
    assert "[source]" in (tmp_path / "waltap.toml").read_text()


def test_init_asks_for_what_is_missing(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "waltap", "init"],
        cwd=tmp_path,
        input="postgres://host/db\nterminal\n",
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert 'type = "terminal"' in (tmp_path / "waltap.toml").read_text()


def test_init_without_anybody_to_ask_names_the_option(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "waltap", "init"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert answer.returncode == 2
    assert "--dsn is not given" in answer.stderr


def test_a_state_folder_without_room_is_told_as_such(profile: str, tmp_path: Path) -> None:
    """The limit on file sizes lets files be made and nothing be written, as a full disk does."""
    command = [sys.executable, "-m", "waltap", "run", profile]
    answer = subprocess.run(
        command,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        env={**os.environ, "COLUMNS": "300", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    text = no_traceback(answer)
    assert answer.returncode == 1
    assert "WT-6005" in text
    assert "File too large" in text
    assert "waltap.state.dir" in text


@pytest.mark.parametrize("path", [".", "shop.toml/ready"], ids=["a-folder", "below-a-file"])
def test_a_ready_file_that_cannot_be_written_is_a_mistake(
    profile: str, tmp_path: Path, path: str
) -> None:
    answer = waltap("run", profile, "--ready-file", path, cwd=tmp_path)
    text = no_traceback(answer)
    assert answer.returncode == 2
    assert "cannot be written" in text


FAULTY = """
connector.class=io.debezium.connector.postgresql.PostgresConnector
topic.prefix=shop
database.dbname=nowhere
database.pasword=geheim
table.whitelist=public.t
decimal.handling.mode=strng
transforms=keep
transforms.keep.type=filtr
waltap.sink.type=jsonl
waltap.sink.pth=x
"""


@pytest.mark.parametrize("form", [[], ["--json"], ["--given"]], ids=["table", "json", "given"])
def test_a_faulty_file_is_explained_as_far_as_it_is_right(tmp_path: Path, form: list[str]) -> None:
    (tmp_path / "c.properties").write_text(FAULTY)
    answer = waltap("explain", "c.properties", *form, cwd=tmp_path)
    assert answer.returncode == 2
    text = no_traceback(answer)
    for name in ("database.pasword", "decimal.handling.mode", "transforms.keep.type"):
        assert name in text
    assert "waltap.sink.pth ([sink] pth) is not known" in text
    assert "5 problems" not in answer.stdout
    assert "database.dbname" in answer.stdout
    assert "nowhere" in answer.stdout
    assert "table.include.list" in answer.stdout
    assert "geheim" not in answer.stdout + answer.stderr
    if form == ["--json"]:
        names = {row["name"] for row in json.loads(answer.stdout)}
        assert "decimal.handling.mode" not in names
