"""Commands of Spark tables take the Spark settings of the profile's sink that writes them."""

import msgspec
import pytest
from typer.testing import CliRunner

from waltap_spark.cli import commands
from waltap_spark.state.output import SparkOutput

PROFILE = """
name = "shop"

[source]
type = "postgres"
"database.hostname" = "localhost"
"database.user" = "waltap"
"database.dbname" = "shop"

[[sinks]]
name = "first"
type = "spark"
path = "first"
"spark.ui.enabled" = "first"

[[sinks]]
name = "lines"
type = "jsonl"
path = "lines.jsonl"

[[sinks]]
name = "second"
type = "spark"
path = "second"
"spark.ui.enabled" = "second"
"""


class SessionRequested(Exception):  # noqa: N818 - it ends a command where a session would start
    """The settings of the session that a command starts."""


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (("--profile", "shop.toml"), "second"),
        (("--profile", "shop.toml", "--set", "spark.ui.enabled=given"), "given"),
        ((), None),
    ],
    ids=["of-the-profile", "of-the-command-line", "none"],
)
def test_a_query_starts_spark_with_the_settings_of_the_profile(
    tmp_path, monkeypatch, words, setting
):
    def requested(*_words: object, settings: dict[str, str], **_more: object) -> None:
        raise SessionRequested(settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "start_session", requested)
    (tmp_path / "shop.toml").write_text(PROFILE)
    output = SparkOutput("second/tables")
    begun = output.open("second/changelog")
    output.commit(msgspec.structs.replace(begun, number=1))
    output.close()
    asked = CliRunner().invoke(commands.application, ["sql", "second", "select 1", *words])
    assert isinstance(asked.exception, SessionRequested), asked.output
    (settings,) = asked.exception.args
    assert settings.get("spark.ui.enabled") == setting
