"""Addresses at which Spark finds the lake."""

from pathlib import Path

import pytest

from billing.lake.lake import Lake
from spark_analytics import s3_jars
from spark_analytics.session import s3a_settings, url_of


def test_a_folder_is_the_same_place_for_spark(tmp_path: Path) -> None:
    assert url_of(Lake(str(tmp_path)), "usage/x.parquet") == f"file://{tmp_path}/usage/x.parquet"
    assert url_of(Lake(f"file://{tmp_path}/"), "usage") == f"file://{tmp_path}/usage"
    assert s3a_settings(str(tmp_path)) == s3a_settings(f"file://{tmp_path}") == {}


def test_a_bucket_is_the_same_place_for_spark() -> None:
    url = "s3://id:se%2Fcret@usage/lake/?region=eu-central-1&endpoint_override=127.0.0.1:9000&scheme=http"
    assert url_of(Lake(url), "usage/x.parquet") == "s3a://usage/lake/usage/x.parquet"
    assert s3a_settings(url) == {
        "fs.s3a.bucket.usage.endpoint.region": "eu-central-1",
        "fs.s3a.bucket.usage.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.bucket.usage.path.style.access": "true",
        "fs.s3a.bucket.usage.access.key": "id",
        "fs.s3a.bucket.usage.secret.key": "se/cret",
    }


@pytest.mark.parametrize("endpoint", ["minio.example:9000", "https://minio.example:9000"])
def test_another_endpoint_is_reached_by_https_unless_configured_otherwise(endpoint: str) -> None:
    assert s3a_settings(f"s3://usage/lake?endpoint_override={endpoint}") == {
        "fs.s3a.bucket.usage.endpoint": "https://minio.example:9000",
        "fs.s3a.bucket.usage.path.style.access": "true",
    }


def test_jars_for_s3_match_sparks_hadoop_and_count_only_when_complete(tmp_path: Path) -> None:
    fetched, jars = tmp_path / "fetched", tmp_path / "jars"
    fetched.mkdir()
    jars.mkdir()
    name, version = s3_jars.package().rpartition(":")[::2]
    assert name == "org.apache.hadoop:hadoop-aws"
    for jar in (f"org.apache.hadoop_hadoop-aws-{version}.jar", "software.amazon.awssdk_bundle-2.0.jar"):
        (fetched / jar).write_bytes(jar.encode())
    assert not s3_jars.are_installed(jars)
    assert s3_jars.add(fetched, jars) == ["bundle-2.0.jar", f"hadoop-aws-{version}.jar"]
    assert s3_jars.are_installed(jars)
    assert {jar.name for jar in jars.iterdir()} == {"bundle-2.0.jar", f"hadoop-aws-{version}.jar"}
    assert (jars / "bundle-2.0.jar").read_bytes() == b"software.amazon.awssdk_bundle-2.0.jar"
