"""Where files are, in the words of Spark's filesystems."""

from pathlib import Path

import pytest

from waltap.files import FileStore, StorageProperties
from waltap_spark.addresses import address
from waltap_spark.output import SparkOutput

NOWHERE = StorageProperties.model_validate(
    {"storage.endpoint": "http://127.0.0.1:9", "storage.region": "us-east-1"}
)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_spark_knows_s3_by_one_name_alone(scheme: str) -> None:
    store = FileStore(f"{scheme}://lake/shop", NOWHERE)
    assert address(store, "segments/a=b/c.parquet") == "s3a://lake/shop/segments/a=b/c.parquet"


def test_other_filesystems_are_called_as_they_are(tmp_path: Path) -> None:
    assert address(FileStore("gs://lake/shop", NOWHERE), "x") == "gs://lake/shop/x"
    assert address(FileStore(str(tmp_path)), "x") == f"file://{tmp_path}/x"
    assert address(FileStore(f"file://{tmp_path}"), "x") == f"file://{tmp_path}/x"


def test_tables_are_at_the_addresses_that_spark_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "x"}.items():
        monkeypatch.setenv(name, value)
    assert SparkOutput("s3://lake/shop").uri("changelog") == "s3a://lake/shop/changelog"
