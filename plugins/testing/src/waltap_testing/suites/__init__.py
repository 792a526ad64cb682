"""Conformance suites: per kind of plugin a class of tests and its rig."""
