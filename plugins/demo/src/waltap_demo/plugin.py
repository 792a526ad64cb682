"""Hook implementations of waltap-demo, and nothing else."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CommandSpec, lazy


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the demo."""
    yield CommandSpec(
        name="demo",
        summary="PostgreSQL to live Spark tables on real data, compared row by row at the end.",
        factory=lazy("waltap_demo.command:demo").imported,
    )
