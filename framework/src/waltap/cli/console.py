"""A console on which text of others drives nothing."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from waltap.base.text import printable_lines

__all__ = ["SafeConsole"]


class SafeConsole(Console):
    """Colours and bars are segments of their own; what is text in a segment is only text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, with what is not printable escaped."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)
