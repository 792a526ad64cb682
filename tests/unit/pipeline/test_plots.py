"""Lines over time, as SVG."""

import re
from xml.etree import ElementTree

from waltap.pipeline.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, LinePlot

MINUTE = 1_777_777_740_000


def lines(plot: LinePlot) -> list[list[tuple[float, float]]]:
    root = ElementTree.fromstring(plot._repr_svg_())
    return [
        [tuple(map(float, pair.split(","))) for pair in each.attrib["points"].split()]
        for each in root.iter("{http://www.w3.org/2000/svg}polyline")
    ]


def test_the_largest_value_is_at_the_top_and_time_goes_to_the_right() -> None:
    plot = LinePlot(
        title="x", unit="ms", points=[(MINUTE, 0.0), (MINUTE + 500, 4.0), (MINUTE + 1000, 2)]
    )
    [line] = lines(plot)
    low = HEIGHT - BOTTOM
    assert line == [
        (LEFT, low),
        ((LEFT + WIDTH - RIGHT) / 2, TOP),
        (WIDTH - RIGHT, (low + TOP) / 2),
    ]


def test_what_is_not_known_breaks_the_line() -> None:
    points = [(MINUTE, 1.0), (MINUTE + 1, None), (MINUTE + 2, 3.0)]
    assert [len(line) for line in lines(LinePlot(title="x", unit="ms", points=points))] == [1, 1]
    assert lines(LinePlot(title="x", unit="ms", points=[(MINUTE, None)])) == []


def test_names_are_text_and_the_picture_can_be_read_aloud() -> None:
    plot = LinePlot(title="<b>", unit="events/s", points=[(MINUTE, 1500.0), (MINUTE + 1000, 20.0)])
    text = plot.svg()
    assert "<title>&lt;b&gt;: 20 events/s now, 1,500 at most</title>" in text
    assert re.findall(r">(\d\d:\d\d:\d\d)<", text) == ["03:09:00", "03:09:01"]
