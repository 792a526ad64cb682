"""The command, called as a user calls it."""

from typer.testing import CliRunner

from waltap_count.command import command


def test_it_counts():
    done = CliRunner().invoke(command)
    assert done.exit_code == 0, done.output
    assert "sinks" in done.output
