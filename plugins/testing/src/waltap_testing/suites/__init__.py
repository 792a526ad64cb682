"""Conformance suites: a test class and rig per plugin kind."""
