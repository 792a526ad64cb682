"""Settings of Spark sessions for Delta Lake and Iceberg.

An engine checks them without pyspark.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from waltap_spark.errors import FormatError, FormatNotReady, FormatUnsupported

EXTENSIONS: Final = "spark.sql.extensions"
JARS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFormat:
    """A format's jars, and the settings that load them."""

    title: str
    # Part of the jars' names, and the pattern of their files.
    word: str
    jars: str
    # Version of pyspark → the format's release for it.
    releases: Mapping[str, str]
    extension: str
    # Other settings that a session needs, unless it has some of that name.
    settings: Mapping[str, str] = field(default_factory=dict)

    def not_ready(self, problem: str, pyspark: str) -> FormatError:
        """Return the error of a session that lacks the format."""
        needed = {EXTENSIONS: self.extension, **self.settings}
        return FormatNotReady(
            problem,
            packages=self.releases.get(_generation(pyspark), self.releases[max(self.releases)]),
            settings=" and ".join(f"{name}={value}" for name, value in needed.items()),
        )

    def session(self, pyspark: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that a session needs besides ``settings``.

        Raises: FormatUnsupported, FormatNotReady.
        """
        if _generation(pyspark) not in self.releases:
            text = f"{self.title} has no release for pyspark {pyspark}"
            raise FormatUnsupported(text, wanted=max(self.releases))
        if not any(self.word in settings.get(name, "") for name in JARS) and not self._brought():
            text = f"{self.title}'s jars are in none of {', '.join(JARS)}"
            raise self.not_ready(text, pyspark)
        found = {name: value for name, value in self.settings.items() if name not in settings}
        known = settings.get(EXTENSIONS, "")
        if self.extension not in known:
            found[EXTENSIONS] = f"{known},{self.extension}" if known else self.extension
        return found

    def _brought(self) -> bool:
        """Return whether Spark's own folder has the jars."""
        spec = importlib.util.find_spec("pyspark")
        home = None if spec is None or spec.origin is None else Path(spec.origin).parent
        return home is not None and any(home.glob(f"jars/{self.jars}"))


def _generation(pyspark: str) -> str:
    return ".".join(pyspark.split(".")[:2])


DELTA: Final = LakeFormat(
    title="Delta Lake",
    word="delta",
    jars="delta-spark_*.jar",
    releases={
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    extension="io.delta.sql.DeltaSparkSessionExtension",
    settings={"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
)

ICEBERG: Final = LakeFormat(
    title="Apache Iceberg",
    word="iceberg",
    jars="iceberg-spark-runtime-*.jar",
    releases={"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
    extension="org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)

# Delta reads its log with a Spark plan for most writes, and the log of most tables is small. The
# histograms are optional fields of its checksum file; each has a hundred literals in that plan. So is
# the list of all files, for which Delta reads its log once more for the first write of each table.
SMALL_LOGS: Final = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
    "spark.databricks.delta.checksumDeletedRecordCountsHistogramMetrics.enabled": "false",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}


def delta_session(pyspark: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return a session's settings for Delta Lake. Raises: as `LakeFormat.session`."""
    found = DELTA.session(pyspark, settings)
    return {name: value for name, value in SMALL_LOGS.items() if name not in settings} | found


def iceberg_session(pyspark: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return a session's settings for Iceberg. Raises: as `LakeFormat.session`."""
    found = ICEBERG.session(pyspark, settings)
    for name, value in settings.items():
        if name.startswith("spark.sql.catalog.") and value.startswith("org.apache.iceberg.spark."):
            # each table is applied in a session of its own: what one remembers would be another's past
            cache = f"{name}.cache-enabled"
            found |= {} if cache in settings else {cache: "false"}
    return found
