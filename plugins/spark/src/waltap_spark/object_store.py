"""Object stores of the profile, as Hadoop's filesystems in a Spark session reach them.

Settings of a session are arguments of its JVM, which every user of the machine can read. So these are set
in the JVM that runs, where tasks get them from.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from waltap.files.properties import StorageProperties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["hadoop_settings", "reach"]

ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
ASSUMED: Final = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"


def hadoop_settings(storage: StorageProperties) -> dict[str, str]:
    """Return what Hadoop's S3 calls that which ``storage`` says. Other stores have settings by account,
    which Spark's own say (``spark.hadoop.…``)."""
    provider = ANONYMOUS if storage.storage_anonymous else ASSUMED if storage.storage_role else None
    found = {
        "endpoint": storage.storage_endpoint,
        "path.style.access": "true" if storage.storage_endpoint else None,
        "endpoint.region": storage.storage_region,
        "access.key": storage.storage_access_key,
        "secret.key": storage.storage_secret_key,
        "session.token": storage.storage_session_token,
        "assumed.role.arn": storage.storage_role,
        "aws.credentials.provider": provider,
    }
    return {f"fs.s3a.{name}": value for name, value in found.items() if value is not None}


def reach(spark: "SparkSession", storage: StorageProperties, chosen: Mapping[str, str]) -> None:
    """Let ``spark`` reach an object store as ``storage`` says, save for what ``chosen``, settings of its
    own, say otherwise."""
    context = cast(Any, spark.sparkContext)
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001 - Python has no word for it
    for name, value in hadoop_settings(storage).items():
        if f"spark.hadoop.{name}" not in chosen:
            hadoop.set(name, value)
