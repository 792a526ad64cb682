"""The pytest plugin of the kit, loaded in every run where waltap is installed: so it is light.

It gives
  the fixture ``walsender``   a factory of `waltap_testing.walsender.Walsender`, stopped at the end;
  a report                    what the suites found out (`record_property("waltap", text)`), printed
                              at the end of the run, one line per subject;
  readable assertions         in the suites, as if they stood in the author's own file.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from waltap_testing.walsender import ScriptedWalsender

FINDING = "waltap"
"""The name of the user property under which a suite records what it found."""

_SUITES = (
    "decoder",
    "format",
    "identity",
    "notification_channel",
    "offset_store",
    "signal_channel",
    "sink",
    "snapshotter",
    "transform",
)

pytest.register_assert_rewrite(
    "waltap_testing.sink_crash",
    "waltap_testing.sink_findings",
    "waltap_testing.sink_losses",
    *(f"waltap_testing.{kind}_suite" for kind in _SUITES),
)


@pytest.fixture
def walsender() -> "Iterator[Callable[..., ScriptedWalsender]]":
    """Return a factory of scripted walsenders; each is started when made and stopped at the end.

    A fault of the server's own threads (a script that never got the feedback it waited for) fails
    the test.
    """
    from waltap_testing.walsender import ScriptedWalsender

    with ExitStack() as running:
        yield lambda *scripts, **options: running.enter_context(
            ScriptedWalsender(*scripts, **options)
        )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the suites found."""
    found: dict[str, None] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == FINDING:
                    found[str(text)] = None
    if found:
        terminalreporter.section("waltap conformance")
        for text in sorted(found):
            terminalreporter.write_line(text)
