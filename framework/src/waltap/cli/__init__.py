"""The ``waltap`` command. One module per command; each imports what it needs when it runs."""

import gc

__all__ = ["main"]

COLLECTED_FROM = 20_000
"""How many containers more there must be before the collector of cycles looks at the young ones. Rows are
freed by their reference counts, so that looking at 700 of them at a time, the default, finds nothing:
a twentieth of the processor time of a run. It is the command's process; a library leaves it alone."""


def main() -> None:
    """Run the command line; the process ends with its exit code."""
    gc.set_threshold(COLLECTED_FROM, 20, 50)
    from waltap.cli.application import run

    run()
