"""The pytest plugin of the kit.

pytest loads it in every run where waltap is installed, so it imports little. It provides:

- the fixture ``walsender``: a factory of `waltap_testing.walsender.ScriptedWalsender`;
- a report at the end of the run, one line per subject, from the findings of the suites
  (`record_property("waltap", text)`);
- readable assertions in the suites, as in the author's own test files.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from waltap_testing.walsender import ScriptedWalsender

# The user property that holds a suite's finding.
FINDING = "waltap"

# pytest rewrites the assertions of test files only; without this a failure shows no values.
pytest.register_assert_rewrite(
    "waltap_testing.sinks", "waltap_testing.suite", "waltap_testing.suites"
)


@pytest.fixture
def walsender() -> "Iterator[Callable[..., ScriptedWalsender]]":
    """Return a factory of scripted walsenders; the test's end stops them.

    A failure in the server's threads, such as missing feedback, fails the test.
    """
    from waltap_testing.walsender import ScriptedWalsender

    with ExitStack() as running:
        yield lambda *scripts, **options: running.enter_context(
            ScriptedWalsender(*scripts, **options)
        )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the findings of the suites."""
    # A dict, since several tests may record the same line.
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
