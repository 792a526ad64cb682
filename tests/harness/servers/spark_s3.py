"""S3 for a Spark session of a test: Hadoop's filesystem, and those parts of Amazon's SDK that it needs.

``hadoop-aws`` asks for Amazon's bundle of all services, which is 690 MB; S3 alone is 15.
"""

from importlib.metadata import version
from pathlib import Path

from tests.harness.servers.jars import jars

HADOOP = "3.4.2" if version("pyspark").startswith("4.1.") else "3.5.0"
"""That of this pyspark."""

FILES = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
SDK = tuple(
    f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")
)


def prepare() -> tuple[Path, ...]:
    """Fetch the jars; return them. Raises: MissingProgram."""
    folders = jars(f"spark-s3-{HADOOP}", FILES, alone=True), jars("aws-sdk", SDK)
    return tuple(sorted(path for folder in folders for path in folder.glob("*.jar")))


def conf(url: str) -> dict[str, str]:
    """Return settings of a session that reads and writes S3 at ``url``. Raises: MissingProgram."""
    return {
        "spark.jars": ",".join(map(str, prepare())),
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
