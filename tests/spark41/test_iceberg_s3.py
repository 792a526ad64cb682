"""Tables in Apache Iceberg whose files are in S3, as is the change log that they follow."""

from pathlib import Path

import pytest
from tests.harness.servers import iceberg
from tests.harness.servers.s3 import S3Server
from tests.integration.test_spark_s3 import conf, tables_follow

__all__ = ["conf"]


@pytest.mark.parametrize("catalogue", [True, False])
def test_tables_follow_a_change_log_in_s3(
    s3: S3Server, bucket: str, conf: dict[str, str], tmp_path: Path, java: Path, catalogue: bool
) -> None:
    """Named in a catalogue in a database, and by their paths alone."""
    conf["spark.jars"] += f",{iceberg.spark_jars()}"
    if catalogue:
        conf |= iceberg.CONF
        conf["spark.sql.catalog.lake.uri"] = f"jdbc:sqlite:{tmp_path}/catalog.db?busy_timeout=60000"
        conf["spark.sql.catalog.lake.warehouse"] = f"s3a://{bucket}/warehouse"
    tables_follow(s3, bucket, conf, tmp_path, "iceberg", "lake" if catalogue else "")
