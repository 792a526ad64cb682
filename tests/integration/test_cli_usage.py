"""The command line without a database: help, exit codes, what errors look like, and no secret anywhere."""

import itertools
import json
import resource
import sys

import pytest
from tests.harness.command import run_program, waltap
from tests.harness.shop import Shop, install_plugin, text_of
from typer.testing import CliRunner

from waltap.cli.application import application

HEAVY = ("pyarrow", "pyspark", "psycopg", "confluent_kafka", "pandas", "numpy", "sqlalchemy")
COMMANDS = "init doctor explain run tail signal status top offsets slot drop plugins docs".split()


@pytest.fixture
def shop(tmp_path) -> Shop:
    (tmp_path / "empty").mkdir()
    made = Shop(tmp_path)
    made.sink = {"type": "terminal"}
    return made


# --- help ------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_each_has_its_own():
    for words in ((), ("--help",), ("-h",)):
        answer = waltap(*words)
        for command in COMMANDS[:-2]:
            assert f" {command} " in answer.stdout + answer.stderr
    for command in COMMANDS:
        answer = CliRunner().invoke(application, [command, "--help"], prog_name="waltap")
        assert (answer.exit_code, f"waltap {command}" in answer.output) == (0, True)
    assert waltap("--version").stdout.startswith("waltap 0.")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    program = (
        "import sys\n"
        f"sys.argv = ['waltap', *{arguments!r}]\n"
        "from waltap.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    code = end.code\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], code)\n"
        "print('PARTS', [m for m in ('pydantic', 'waltap.pipeline', 'waltap.ports.sink') if m in sys.modules])\n"
        "print(sum(m.partition('.')[0] == 'waltap' for m in sys.modules))\n"
    )
    answer = run_program(sys.executable, "-c", program, code=None)
    heavy, parts, modules = answer.stdout.splitlines()[-3:]
    assert heavy in {"HEAVY [] 0", "HEAVY [] None"}, answer.stderr
    if arguments == ["--help"]:  # the other makes specs of plugins, with their properties
        assert parts == "PARTS []"
    assert int(modules) <= {"--help": 60, "run": 40}[arguments[0]], (
        "commands import the engine where they use it"
    )


# --- exit codes and errors -------------------------------------------------------------------------

ENDS = [
    ("run absent.toml", 2, "absent.toml cannot be read"),
    ("run x.toml --until-idle soon", 2, "should be a valid number"),
    ("nonsense", 2, "No such command 'nonsense'"),
    ("tail mysql://host/db", 2, "mysql"),
    ("doctor postgres://host:port/db", 2, "DSN cannot be read"),
    ("run FILE --set novalue", 2, "--set is not NAME=VALUE"),
    ("run FILE --until-lsn 7", 2, "--until-lsn is not an LSN; given: 7"),
    ("run FILE --sink jsnol:x", 2, "--sink no sink is called 'jsnol'"),
    ("run FILE --http nowhere", 2, "HOST:PORT"),
    ("run FILE --ready-file .", 2, "cannot be written"),
    ("run --all . --http 127.0.0.1:0", 2, "--http is of one pipeline"),
    ("run --all empty", 2, "finds no profile"),
    ("top empty", 2, "WT-1001 … empty has neither profiles nor states"),
    ("status empty", 2, "WT-1001 … waltap init FILE"),
    ("signal FILE log", 1, "WT-6201 … waltap run FILE"),
    ("init \udcff.toml --dsn postgres://h/d --sink null", 2, "an argument is not UTF-8 text"),
    ("replay shop.toml --sink null", 1, "WT-2041"),
    ("init", 2, "--dsn is not given"),
    ("init x.Properties --dsn postgres://h/d --sink null", 2, "FILE.toml"),
    ("run FILE --http é..b:80 --set waltap.http.token=12345678", 2, "cannot be listened at"),
    ("doctor FILE --set waltap.http=127.0.0.1", 2, "waltap.http has another form"),
    ("plugins new x --kind decodr", 2, "'--kind': 'decodr' is not one of"),
]


@pytest.mark.parametrize(("line", "code", "words"), ENDS)
def test_a_command_ends_with_its_code_and_says_why(shop, line, code, words):
    text = shop.says(line, code=code)
    for word in words.split(" … "):
        assert word in text


def test_logs_off_a_terminal_are_json_lines_and_tracebacks_come_when_asked_for(shop):
    answer = shop.waltap("run FILE")
    lines = [json.loads(line) for line in answer.stderr.splitlines() if line.startswith("{")]
    assert {"ts", "level", "logger", "message"} <= set(lines[0])
    assert any(line.get("error_code") == "WT-2002" for line in lines)
    asked = shop.waltap("run FILE", WALTAP_LOG="text", WALTAP_TRACEBACK="1")
    assert not [line for line in asked.stderr.splitlines() if line.startswith("{")]
    assert (asked.returncode, "Traceback" in asked.stderr) == (3, True)


def test_a_state_folder_without_room_is_reported_as_such(shop):
    """The limit on file sizes lets files be made and nothing be written, as a full disk does."""
    answer = run_program(
        *(sys.executable, "-B", "-m", "waltap", "run", shop.path), code=1, cwd=shop.folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    text = text_of(answer)
    for words in ("WT-6005", "File too large", "waltap.state.dir"):
        assert words in text


# --- plugins ---------------------------------------------------------------------------------------

COMMAND = """
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CommandSpec
{function}
@hookimpl
def register_commands():
    return [CommandSpec(name='acmecmd', summary='s', factory=lambda: {factory})]
"""
GREET = "def acmecmd(name: str):\n    '''Say hello.'''\n    print('hello', name)\n"
RAISE = "def acmecmd():\n    '''Crash.'''\n    raise RuntimeError('boom')\n"
RAISED = "WT-1108 … plugin 'acme' of acme 1.0 raised RuntimeError: boom … report it"
UNMADE = (
    "WT-1103 hook raised … command 'acmecmd' of acme 1.0 cannot be made: ZeroDivisionError: "
    "division by zero"
)
OF_PLUGINS = [
    (GREET, "acmecmd", "--help", 0, "acmecmd"),
    (GREET, "acmecmd", "acmecmd ann", 0, "hello ann"),
    (RAISE, "acmecmd", "acmecmd", 1, RAISED),
    (RAISE, "1 / 0", "--help", 0, "waltap"),
    (RAISE, "1 / 0", "acmecmd", 2, UNMADE),
    ("import not_there_at_all", "0", "plugins", 0, "failed to import … WT-1105 … not_there_at_all"),
]


@pytest.mark.parametrize(("function", "factory", "line", "code", "words"), OF_PLUGINS)
def test_a_command_of_a_plugin_runs_and_its_faults_are_reported_as_its_own(
    shop, function, factory, line, code, words
):
    install_plugin(shop.folder, COMMAND.format(function=function, factory=factory))
    text = shop.says(line, code=code)
    for word in words.split(" … "):
        assert word in text


def test_plugins_lists_distribution_version_health_and_what_is_provided(shop):
    listed = {each["distribution"]: each for each in shop.json("plugins --json")}
    postgres = listed["waltap-postgres"]
    assert (postgres["health"], postgres["provides"]["connectors"]) == ("ok", ["postgres"])
    table = shop.says("plugins")
    for words in ("waltap-postgres", "connectors: postgres", "ok"):
        assert words in table
    lacking = shop.says("demo", code=1, WALTAP_PLUGINS="postgres")
    assert "pip install 'waltap[demo]'" in lacking


# --- explain and init ------------------------------------------------------------------------------


def test_explain_shows_values_origins_and_no_secret(shop):
    shop.source["database.password"] = "geheim"
    explained = shop.says("explain FILE", PYTHONIOENCODING="ascii")
    assert "geheim" not in explained
    assert "postgres → pgoutput" in explained
    rows = {e["name"]: e for e in shop.json("explain FILE --json")}
    assert rows["database.password"]["value"] == "***"
    assert rows["database.dbname"] == {
        "name": "database.dbname",
        "value": "nowhere",
        "origin": f"{shop.path} [source]",
        "component": "connector postgres",
        "meaning": rows["database.dbname"]["meaning"],
        "allowed": "",
        "unit": None,
        "reloadable": False,
    }
    given = {e["origin"] for e in shop.json("explain FILE --json --given")}
    assert given <= {f"{shop.path} [source]", f"{shop.path} [sink]", "name", str(shop.path)}


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


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_faulty_file_is_explained_as_far_as_it_is_right(shop, form):
    (shop.folder / "c.properties").write_text(FAULTY)
    answer = shop.waltap(f"explain c.properties {form}")
    assert answer.returncode == 2
    text = text_of(answer)
    for name in ("database.pasword", "decimal.handling.mode", "transforms.keep.type"):
        assert name in text
    assert "waltap.sink.pth ([sink] pth) is not known" in text
    assert "5 problems" not in answer.stdout
    for shown in ("database.dbname", "nowhere", "table.include.list"):
        assert shown in answer.stdout
    assert "geheim" not in text
    if form == "--json":
        names = {row["name"] for row in json.loads(answer.stdout)}
        assert "decimal.handling.mode" not in names


@pytest.mark.parametrize("form", ["", "--all "])
def test_init_writes_a_profile_that_explains_itself(shop, form):
    uri = "postgres://ann:geheim@db.example:6000/shop"
    reported = shop.says(f"init new.toml {form}--sink terminal:40 --dsn", uri)
    text = (shop.folder / "new.toml").read_text()
    assert ('"waltap.linger.ms"' in text) == bool(form)
    assert 'name = "new"' in text
    assert "geheim" not in text + reported
    assert "export WALTAP_PASSWORD" in reported
    assert max(map(len, text.splitlines())) <= 100
    assert bool(form) or len(text.splitlines()) <= 40
    shop.variables = {"WALTAP_PASSWORD": "x"}
    rows = {e["name"]: e["value"] for e in shop.json("explain new.toml --json")}
    assert (rows["database.hostname"], rows["sink.width"]) == ("db.example", "40")
    assert rows["topic.prefix"] == "new"
    lines = [
        line.removeprefix("# ")
        if line.startswith('# "')
        and not line.endswith(('= ""', "= []", '_PASSWORD}"', '"${env:NAME}"'))
        else line
        for line in text.splitlines()
    ]
    (shop.folder / "all.toml").write_text("\n".join(lines))
    shop.says(f"init new_é.toml {form}--sink terminal --dsn", uri)
    shop.says("explain new_é.toml")
    shop.says("explain all.toml")  # what it comments out is valid when it is used


def test_init_asks_for_what_is_missing_and_never_replaces_a_file_unasked(shop):
    typed = "postgres://host/db\nterminal\n"
    run_program(sys.executable, "-m", "waltap", "init", cwd=shop.folder, input=typed)
    path = shop.folder / "waltap.toml"
    assert 'type = "terminal"' in path.read_text()
    path.write_text("mine")
    line = "init --dsn postgres://host/db --sink terminal"
    assert "--force" in shop.says(line, code=2)
    assert path.read_text() == "mine"
    assert "database.password is not given" in shop.says(f"{line} --force")
    assert '# "database.password" = "${env:WALTAP_PASSWORD}"\n' in path.read_text()


# --- secrets ---------------------------------------------------------------------------------------

SECRET = "sEsAm/o1#"
QUOTED = "sEsAm%2Fo1%23"
PIECES = ("sEsAm", "o1#", "o1%23")
"""None of these may be seen: a message that quotes half of a torn URI shows enough."""

URIS = [
    f"postgres://u@127.0.0.1:1/d?password={QUOTED}",
    f"postgres://u:{QUOTED}@127.0.0.1:1/d",
    f"postgres://u@127.0.0.1:1/d?sslpassword={QUOTED}",
    f"postgres://u@127.0.0.1:1/d?password={QUOTED}&slot=1",
    f"postgres://u@127.0.0.1:1/d?password={QUOTED}&sslmode=no",
    f"postgres://u:{SECRET}@127.0.0.1:1/d",
    f"postgres://127.0.0.1:x/d?password={QUOTED}",
    f"postgres:/u:{SECRET}@127.0.0.1:1/d",
    f"postgrs://u:{QUOTED}@127.0.0.1:1/d",
    f"host=127.0.0.1 dbname=d password={SECRET}",
    f"host=127.0.0.1 dbname=d password = '{SECRET} x'",
]
SETTINGS = [
    f"database.password={SECRET}",
    f"database.sslpassword={SECRET}",
    f"driver.password={SECRET}",
    f"driver.scram_client_key={SECRET}",
    f"database.pasword={SECRET}",
    f"database.password {SECRET}",
    f"some.url=http://ann:{SECRET}@h/",
    f"database.port=x?password={SECRET}",
]


def hidden(shop: Shop, line: str, *more: str, **variables: str) -> str:
    """Run a command with tracebacks; return what it said, which has no piece of the secret."""
    done = shop.waltap(line, *more, WALTAP_TRACEBACK="1", **variables)
    text = done.stdout + done.stderr
    assert not [piece for piece in PIECES if piece in text], text
    return text


def test_a_password_in_a_connection_string_or_a_property_is_not_shown(shop):
    for command, uri in zip(itertools.cycle(("explain", "doctor", "tail")), URIS, strict=False):
        assert hidden(shop, command, uri)
    for command, setting in zip(itertools.cycle(("explain", "run")), SETTINGS, strict=False):
        assert hidden(shop, f"{command} FILE --set", setting)


RAISING = """
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SinkSpec
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


def test_a_password_of_a_placeholder_is_not_shown_nor_what_a_plugin_shows_of_it(shop):
    (shop.folder / "word").write_text(SECRET)
    shop.source |= {"database.password": "${file:word}", "slot.name": "${env:SESAME}", "no.such": 1}
    text = hidden(shop, "explain FILE", SESAME=SECRET)
    assert "slot.name" in text
    assert "no.such" in text
    install_plugin(shop.folder, RAISING)
    shop.source = {**Shop(shop.folder).source, "database.password": "${env:SESAME}"}
    shop.sink = {"type": "raising"}
    text = hidden(shop, "run FILE", SESAME=SECRET)
    for words in ("WT-5999", "connecting with ***", "http://u:***@h refused"):
        assert words in text


# --- sIGINT while modules are loaded ends the process, and prints nothing -----------------------------

INTERRUPTED = """
import builtins, os, signal, sys
load, wanted = builtins.__import__, sys.argv.pop(1)
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
def test_no_traceback_of_an_import(module):
    done = run_program(sys.executable, "-c", INTERRUPTED, module, "plugins", code=130)
    assert (done.stdout, done.stderr) == ("", "")


# --- a run loads the modules that its pipeline uses, and none of other plugins ------------------------

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


def test_a_snapshot_into_lines_loads_no_other_plugin(database, tmp_path):
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
    done = run_program(*command)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert (code, lines.read_bytes().count(b"\n")) == (0, 1000), done.stderr
    for plugin in UNUSED:
        ours = {name for name in modules if name.partition(".")[0] == f"waltap_{plugin}"}
        assert ours <= {f"waltap_{plugin}", f"waltap_{plugin}.plugin"}
    assert not {"pyspark", "pandas", "sqlalchemy", "confluent_kafka"} & set(modules)
    assert not {"pyarrow", "numpy"} & set(modules), "a thousand rows are quicker without"
    found = sum(name.partition(".")[0].startswith("waltap") for name in modules)
    assert found <= MOST
