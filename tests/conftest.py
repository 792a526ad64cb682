"""Fixtures for all tests: real servers, from `tests.servers.fixtures`."""

pytest_plugins = ["tests.servers.fixtures"]
