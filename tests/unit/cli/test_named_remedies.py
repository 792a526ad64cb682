"""What a message shows people to use is there: commands, options, properties, pages."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.test_tidy import PACKAGES, ROOT, fields_of, modules, named, nodes, sources
from typer.main import get_command

from waltap.base.property import declarations
from waltap.cli.application import application
from waltap.cli.reference.pages import error_classes
from waltap.cli.reference.properties import components
from waltap.config.debezium import OLD_NAMES
from waltap.config.debezium import known as debezium_known
from waltap.config.layers import POST, SINK_PREFIX
from waltap.errors import WaltapError
from waltap.plugins.host import Host

HOST = Host()
COMMAND = re.compile(r"`waltap(?: ([^`]*))?`")
PROPERTY = re.compile(r"(?<![\w./'{$-])[a-z][a-z_0-9]*(?:\.[a-z_0-9]+)+(?![\w(/*])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
PAGE = re.compile(r"docs/[\w/-]+\.md")

NO_PROPERTIES = {"pg_hba.conf", "schema.table", "sink.path", "waltap.toml", "shop.toml"}
"""What looks like one: files, and what stands for any name."""

OF_KAFKA = {
    *("advertised.listeners", "isolation.level", "max.message.bytes", "transaction.max.timeout.ms"),
    *("replication.factor", "cleanup.policy", "key.serializer", "value.serializer", "max.block.ms"),
    *("buffer.memory", "max.request.size", "delivery.timeout.ms", "linger.ms", "sasl.jaas.config"),
    *("sasl.username", "sasl.password", "ssl.truststore.location", "ssl.truststore.certificates"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.keystore.location", "ssl.certificate.location"),
    *("security.protocol", "sasl.mechanism"),
    *("ssl.key.location", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"),
}
"""Settings of brokers, topics and other clients of Kafka."""

OPTIONS_OF_OTHERS = {
    *("--upgrade", "--force-reinstall"),
    *("--create", "--topic", "--add", "--alter", "--list", "--bootstrap-server", "--partitions"),
}
"""What pip and the scripts of Kafka take."""


@cache
def root() -> Any:
    return get_command(application)


def command_of(words: list[str]) -> Any:
    """Return the command that ``words`` name, None when there is none."""
    found = root()
    for word in words:
        if not hasattr(found, "list_commands"):
            break
        context = typer.Context(found)
        further = found.get_command(context, word)
        if further is not None and found is root():
            further = found.plugin_command(word) or further
        if further is None:
            return None if re.fullmatch(r"[a-z][a-z-]*", word) else found
        found = further
    return found


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


def said() -> Iterator[tuple[str, str]]:
    """Return every text that may be shown, all but docstrings, in our sources that name a command."""
    for path in sources():
        if "`waltap" not in path.read_text(encoding="utf-8"):
            continue
        docstrings = {
            id(node.body[0].value)
            for node in nodes(path)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if node.body and isinstance(node.body[0], ast.Expr)
        }
        for node in nodes(path):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docstrings
            ):
                yield f"{named(path)}:{node.lineno}", node.value


def exists(rest: str) -> bool:
    """Return whether there is the command that ``rest`` names, with its options."""
    command = command_of([word for word in rest.split() if not word.startswith("-")])
    return command is not None and set(OPTION.findall(rest)) <= options_of(command)


def test_every_command_that_is_named_exists():
    shown = [(where, rest) for where, text in said() for rest in COMMAND.findall(text)]
    assert not [f"{where}: waltap {rest}" for where, rest in shown if not exists(rest)]
    assert len(shown) > 30


CLASSES = error_classes(PACKAGES)


def rendered(error: type[WaltapError]) -> str:
    return error.remedy.format_map(dict.fromkeys(fields_of(error.remedy), "…"))


DECLARED = [each for _, _, model in components(HOST) for each in declarations(model)]
SINGLE = {name for declaration in DECLARED for name in declaration.names}
FAMILIES = {declaration.family for declaration in DECLARED if declaration.family is not None}


@cache
def known(name: str) -> bool:
    if name in NO_PROPERTIES | OF_KAFKA | SINGLE:
        return True
    return any(family.fullmatch(name) for family in FAMILIES)


def test_what_a_remedy_names_is_there():
    every = {option for name in root().list_commands(None) for option in _all_options(name)}
    for error in CLASSES:
        text = rendered(error)
        assert not [name for name in PROPERTY.findall(text) if not known(name)], error
        assert not [page for page in PAGE.findall(text) if not (ROOT / page).exists()], error
        assert set(OPTION.findall(text)) - OPTIONS_OF_OTHERS <= every, error


def _all_options(name: str) -> set[str]:
    command = command_of([name])
    found = options_of(command)
    for inner in getattr(command, "commands", {}).values():
        found |= options_of(inner)
    return found


PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.parent.name not in {"reference", "decisions"}
)
CODE = re.compile(r"```(\w*)\n(.*?)```|`([^`\n]+)`", re.DOTALL)
FENCED = {"sh", "console", "shell", ""}
SHOWN_COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*waltap (.+)$", re.MULTILINE)
DOTTED = re.compile(r"[a-z][a-z_0-9]*(?:\.[a-z_0-9]+)+")
OTHERS = re.compile(
    r".*\.(?:toml|json|jsonl|md|py|txt|properties|sql|duckdb|parquet|conf|current|changes|lock|pth|sock)"
    r"|(?:waltap_\w+|tests|spark|delta|pyarrow|psycopg|io|org|java|msgspec|abc|json|os|my|acme\w*)\..*"
    r"|(?:public|schema|sales|shop|pg_\w+|context|batch|connector|values|properties|source|record|host|server|pipeline)\..*"
    r"|(?:value|key)\.(?:op|id|after|before|source)(?:\..*)?|struct\..*|jsr223\..*|topic\..*"
)
"""What is dotted and no property: files, modules, tables, attributes of Python objects."""


def shown_on(page: Path) -> Iterator[tuple[str, str]]:
    """Give (kind, text) of the code on a page: a language for a block, "span" for what is in a line."""
    for language, block, span in CODE.findall(page.read_text(encoding="utf-8")):
        yield ("span", span) if span else (language, block)


def of_python(name: str) -> bool:
    return name in modules() or name.rpartition(".")[0] in modules()


def test_commands_on_pages_exist():
    wrong = []
    for page, (kind, text) in ((page, shown) for page in PAGES for shown in shown_on(page)):
        if kind not in {"span", *FENCED}:
            continue
        wrong += [
            f"{named(page)}: waltap {rest}"
            for rest in SHOWN_COMMAND.findall(text)
            if not exists(re.split(r" [|&;#>]|  ", rest)[0])
        ]
    assert not wrong


def test_properties_on_pages_exist():
    wrong = []
    for page, (kind, text) in ((page, shown) for page in PAGES for shown in shown_on(page)):
        if kind == "toml":
            names = re.findall(r'^"([\w.]+)"\s*=', text, re.MULTILINE)
        elif kind == "span":
            name = text.partition("=")[0].strip().strip('"')
            names = [name] if DOTTED.fullmatch(name) and not OTHERS.fullmatch(name) else []
        else:
            continue
        wrong += [
            f"{named(page)}: {name}"
            for name in names
            if not (
                known(name)
                or debezium_known(name)
                or of_python(name)
                or name in {POST, f"{SINK_PREFIX}type"}
            )
            and name not in OLD_NAMES
        ]
    assert not wrong


@pytest.mark.parametrize(
    "words",
    [["snapshots"], ["offsets", "forget"], ["changelog", "lst"], ["spark", "tables"]],
    ids=" ".join,
)
def test_a_command_that_is_not_there_is_not_found(words):
    assert command_of(words) is None
