"""``python -m waltap``: the command line."""

from waltap.cli import main

main()
