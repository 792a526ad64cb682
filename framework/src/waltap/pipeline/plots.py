"""Lines over time as SVG, for notebooks and files: no library, no outside resource.

A plot is drawn when it is looked at. Colours follow the page around it (`currentColor`), light or dark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

__all__ = ["LinePlot"]

WIDTH, HEIGHT = 640, 180
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 26, 24
LINE = "#1f9d8f"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlot:
    """One line. ``points`` are (ms since 1970 UTC, value), the oldest first; None breaks the line."""

    title: str
    unit: str
    points: Sequence[tuple[int, float | None]]

    def svg(self) -> str:
        """Return the picture as a document of its own."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
            f' role="img" font-family="sans-serif" font-size="11" fill="currentColor">'
            f"<title>{escape(self._told())}</title>"
            f'<text x="{LEFT}" y="15" font-size="13">{escape(self.title)}</text>'
            f"{self._axes()}{self._lines()}</svg>"
        )

    def save(self, path: str | Path) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def _told(self) -> str:
        """Return what the picture says, for those who do not see it."""
        known = [value for _, value in self.points if value is not None]
        if not known:
            return f"{self.title}: nothing is known yet"
        return f"{self.title}: {known[-1]:,.0f} {self.unit} now, {max(known):,.0f} at most"

    def _top(self) -> float:
        return max((value for _, value in self.points if value is not None), default=0.0) or 1.0

    def _place(self, at: int, value: float) -> str:
        begin, end = self.points[0][0], self.points[-1][0]
        x = LEFT + (WIDTH - LEFT - RIGHT) * (at - begin) / max(end - begin, 1)
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top()
        return f"{x:.1f},{y:.1f}"

    def _lines(self) -> str:
        pieces: list[list[str]] = [[]]
        for at, value in self.points:
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append(self._place(at, value))
        return "".join(
            f'<polyline points="{" ".join(piece)}" fill="none" stroke="{LINE}" stroke-width="2"/>'
            for piece in pieces
            if piece
        )

    def _axes(self) -> str:
        low, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        drawn = "".join(
            f'<line x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="currentColor" opacity="0.2"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:,.0f}</text>'
            for y, value in ((low, 0.0), (TOP, self._top()))
        )
        drawn += f'<text x="{right}" y="15" text-anchor="end">{escape(self.unit)}</text>'
        if self.points:
            for at, x, anchor in (
                (self.points[0][0], LEFT, "start"),
                (self.points[-1][0], right, "end"),
            ):
                time = datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M:%S")
                drawn += f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{time}</text>'
        return drawn
