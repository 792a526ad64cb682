"""A view on a terminal that is drawn again and again, until somebody ends it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["draw_until_interrupted"]


def draw_until_interrupted(view: "Callable[[], RenderableType]", every_s: float) -> None:
    """Draw ``view`` every so many seconds until Ctrl-C. What is no terminal gets one view after the other,
    below each other."""
    from rich.live import Live

    from waltap.cli.live_console import answers

    console = answers()
    try:
        if not console.is_terminal:
            while True:
                console.print(view())
                time.sleep(every_s)
        with Live(view(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                live.update(view(), refresh=True)
    except KeyboardInterrupt:
        return
