"""Conformance suites: a class of tests, and the rig that an author provides, per kind of plugin."""
