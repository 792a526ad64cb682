"""The ``waltap`` command. One module per command; each imports what it needs when it runs."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; the process ends with its exit code."""
    from waltap.cli.application import run

    run()
