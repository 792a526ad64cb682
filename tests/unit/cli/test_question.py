"""A command that asks, and gets no yes, does nothing and fails: a script must not take it for done."""

import pytest
import typer
from typer.testing import CliRunner

from waltap.cli.question import confirm


@pytest.mark.parametrize(("answer", "code"), [("", 1), ("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_without_a_yes_the_exit_code_is_1(answer: str, code: int) -> None:
    app = typer.Typer()

    @app.command()
    def ask(*, yes: bool = False) -> None:
        confirm("Go on?", yes=yes)
        typer.echo("done")

    asked = CliRunner().invoke(app, [], input=answer)
    assert asked.exit_code == code
    assert ("done\n" in asked.output.replace("nothing was done", "")) == (code == 0)
    assert CliRunner().invoke(app, ["--yes"]).exit_code == 0
