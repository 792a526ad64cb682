"""Fixtures of several modules: profiles for commands, targets of the SQL sink, topics that Spark's tables follow, and
SQL on tables in the session of the tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.harness.shop import Shop
from tests.harness.sql import duck, file, maria, place, postgres
from tests.harness.topics import topic
from typer.testing import CliRunner

__all__ = ["duck", "file", "maria", "place", "postgres", "topic"]


@pytest.fixture
def shop(request, database, tmp_path) -> Shop:
    """Return a profile of a database, as `@pytest.mark.shop(sql=…, source=…, sink=…, variables=…)` on the
    module says."""
    made = Shop(tmp_path, database)
    for mark in request.node.iter_markers("shop"):
        database.execute(mark.kwargs["sql"])
        made.source |= mark.kwargs.get("source", {})
        made.sink = mark.kwargs.get("sink", made.sink)
        made.variables = mark.kwargs.get("variables", {})
    return made


@pytest.fixture
def spark_sql(spark, tmp_path, monkeypatch) -> Callable[..., Result]:
    """Return a function that runs ``waltap spark sql`` on tables, with more words and what is ``typed``, in the session
    of the tests: one of its own takes ten seconds to start."""
    from waltap_spark.cli import commands

    class Shared:
        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    def ask(tables: Path, *words: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(commands.application, ["sql", str(tables), *words], input=typed)

    monkeypatch.setattr(commands, "start_session", lambda *_, **__: Shared())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ask
