"""``python -m spark_analytics.s3_jars``: adds the packages for ``s3://`` to Spark's files, once.

These are Hadoop's S3A, in the version of PySpark's Hadoop, and its dependencies: about 700 MB, from Maven Central.
Without them Spark fetches them when a job starts.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

JARS: Final = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"


def package() -> str:
    """Maven coordinates of S3A."""
    (jar,) = JARS.glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-aws:{jar.stem.rpartition('-')[2]}"


def are_installed(jars: Path = JARS) -> bool:
    """Return whether Spark has the packages."""
    return any(jars.glob("hadoop-aws-*.jar"))


def cache() -> str:
    """Folder of the fetched jars, below ``HOME``; Java itself would ignore that variable."""
    return os.path.expanduser("~/.ivy2")


def add(fetched: Path, jars: Path = JARS) -> list[str]:
    """Copy the fetched files, ``GROUP_NAME-VERSION.jar``, to Spark's; returns their names.

    S3A's own jar is copied last, because :func:`are_installed` checks for it.  Raises :class:`OSError`.
    """
    names = {jar.name.partition("_")[2]: jar for jar in fetched.glob("*.jar")}
    in_order = sorted(names, key=lambda name: (name.startswith("hadoop-aws-"), name))
    for name in in_order:
        aside = jars / f".{name}"
        shutil.copyfile(names[name], aside)
        aside.rename(jars / name)
    return in_order


def main() -> int:
    if are_installed():
        print(f"{package()} is already among {JARS}")
        return 0
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark resolves this machine's name, which may fail
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        settings = {"spark.jars.packages": package(), "spark.jars.ivy": folder, "spark.ui.enabled": "false"}
        try:
            SparkSession.builder.master("local[1]").config(map={**settings}).getOrCreate().stop()
            added = add(Path(folder, "jars"))
        except PySparkRuntimeError:
            print(f"{package()} was not fetched; the reason is above", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"{error.filename} cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    print(f"{', '.join(added)} in {JARS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
