"""The reference pages are current, and what they are made from is complete."""

import json
import re
import sys
import tomllib
from pathlib import Path

from jsonschema import Draft202012Validator
from tests.harness.command import run_program
from tests.test_tidy import PACKAGES, fields_of

from waltap.base.property import declarations
from waltap.cli.reference.pages import error_classes, pages
from waltap.cli.reference.properties import components, profile_schema
from waltap.plugins.host import Host

DOCS = Path(__file__).parents[3] / "docs"
OURS = set(
    re.findall(r"^OURS := (\S+)$", (DOCS.parent / "Makefile").read_text(), re.M)[0].split(",")
)
HOST = Host(only=OURS)


def test_make_docs_writes_what_is_ours_whatever_else_is_installed():
    plugins = {path.name for path in (DOCS.parent / "plugins").iterdir() if path.is_dir()}
    assert plugins == OURS | {"testing"}


def test_every_page_is_current():
    texts = {path: page() for path, page in pages(HOST).items()}
    old = [p for p, text in texts.items() if (DOCS / p).read_text(encoding="utf-8") != text]
    assert not old, "run `make docs`"


CLASSES = error_classes(PACKAGES)


def test_every_error_has_a_text_and_a_remedy_that_can_be_filled_in():
    for error in CLASSES:
        assert (error.__doc__ or "").strip().endswith((".", ":")), error
        assert len(error.remedy) >= 20, error
        filled = error.remedy.format_map(dict.fromkeys(fields_of(error.remedy), "x"))
        assert filled.rstrip().endswith((".", ";", "x")), error
        assert "{" not in filled, error


def test_every_property_says_what_it_means_in_a_sentence():
    for heading, _, model in components(HOST):
        for declaration in declarations(model):
            assert declaration.summary.rstrip()[-1] in ".…", (heading, declaration.summary)
            if declaration.name.endswith(".ms"):
                assert declaration.unit == "ms", (heading, declaration.name)


def test_the_schema_describes_a_profile():
    schema = json.loads(json.dumps(profile_schema(HOST)))
    source = schema["properties"]["source"]["properties"]
    table = source["table"]["properties"]["include"]["properties"]["list"]
    assert table["type"] == ["array", "string"]
    assert "default" not in source["slot"]["properties"]["name"]  # the pipeline's name
    modes = source["publication"]["properties"]["autocreate"]["properties"]["mode"]
    assert "filtered" in modes["anyOf"][0]["enum"]
    assert "postgres" in source["type"]["examples"]
    for mode, fits in (("STRING", True), (" precise", True), ("${env:X}", True), ("text", False)):
        given = {
            "source": {"type": "postgres", "decimal.handling.mode": mode, "tombstones.on.delete": 1}
        }
        assert Draft202012Validator(schema).is_valid(given) == fits, mode


def test_the_schema_and_parts_need_no_http_client():
    """It comes with extras; the profile that needs it is told which (WT-1112)."""
    program = (
        "import sys; sys.modules['httpx'] = sys.modules['httpcore'] = None\n"
        "from waltap.cli.reference.properties import profile_schema\n"
        "from waltap.plugins.host import Host\n"
        "host = Host(only={'sinks'}); profile_schema(host); host.sinks['http'].factory.imported()\n"
        "host.notification_channels['webhook'].factory.imported()"
    )
    run_program(sys.executable, "-c", program)


def test_the_schema_takes_the_profiles_of_the_pages():
    whole = Draft202012Validator(profile_schema(HOST))
    source = '[source]\ntype = "postgres"\n'
    profiles = [
        f"{source}snapshot.select.statement.overrides.public.t = 'SELECT 1'",
        f"{source}snapshot.max.threads.multiplier = 2",
        f"{source}snapshot.max.threads = 2",
        f"{source}database.sslmode = '${{env:TLS}}'",
        f"{source}wal2json.format-version = 2",
        f"{source}[sink]\ntype = 'spark'\n'type.change' = 'string'",
    ]
    for page in (DOCS / "howto").glob("*.md"):
        profiles += re.findall(r"^```toml\n(\[.*?)^```", page.read_text("utf-8"), re.M | re.S)
    assert len(profiles) > 25
    for profile in profiles:
        document = {"source": {"type": "postgres"}} | tomllib.loads(profile)
        document["source"].setdefault("type", "postgres")
        document.get("sink", {}).setdefault("type", "null")
        assert [error.message for error in whole.iter_errors(document)] == [], profile
