"""Fixtures for all tests: real servers, from `tests.servers.fixtures`."""

from hypothesis import settings

pytest_plugins = ["tests.servers.fixtures"]

settings.register_profile("shared machine", deadline=None)  # no test is a matter of time
settings.load_profile("shared machine")
