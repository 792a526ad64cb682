"""Tests for the environment with pyspark 4.1; `tests.integration.test_older_spark` runs them there."""

from tests.harness.servers.iceberg import runs_here

collect_ignore_glob = [] if runs_here() else ["test_*.py"]
