"""``python -m spark_analytics.s3_jars``: puts what Spark needs for ``s3://`` among its own files, once.

That is Hadoop's S3A, of the version of the Hadoop that comes with PySpark, and what it needs: about 700 MB, from
Maven's central repository.  Where it is not, Spark fetches it when a job begins.
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
    """S3A, as Maven calls it."""
    (jar,) = JARS.glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:hadoop-aws:{jar.stem.rpartition('-')[2]}"


def there(jars: Path = JARS) -> bool:
    """True if Spark has it."""
    return any(jars.glob("hadoop-aws-*.jar"))


def cache() -> str:
    """Folder of the fetched jars: below ``HOME``, by which Java itself does not go."""
    return os.path.expanduser("~/.ivy2")


def add(fetched: Path, jars: Path = JARS) -> list[str]:
    """Put what was fetched, ``GROUP_NAME-VERSION.jar``, among Spark's files; the one by which it is known comes last.

    Raises :class:`OSError`.
    """
    names = {jar.name.partition("_")[2]: jar for jar in fetched.glob("*.jar")}
    in_order = sorted(names, key=lambda name: (name.startswith("hadoop-aws-"), name))
    for name in in_order:
        aside = jars / f".{name}"
        shutil.copyfile(names[name], aside)
        aside.rename(jars / name)
    return in_order


def main() -> int:
    if there():
        print(f"{package()} is among {JARS} already")
        return 0
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark looks for this machine's name, if it has one
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        settings = {"spark.jars.packages": package(), "spark.jars.ivy": folder, "spark.ui.enabled": "false"}
        try:
            SparkSession.builder.master("local[1]").config(map={**settings}).getOrCreate().stop()
            added = add(Path(folder, "jars"))
        except PySparkRuntimeError:
            print(f"{package()} was not fetched; why is said above", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"{error.filename} cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    print(f"{', '.join(added)} in {JARS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
