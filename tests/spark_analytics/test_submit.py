"""``spark-submit`` as ``docs/operations.md`` shows it, from the wheel, on executors that have nothing of Holdfast.

``local-cluster`` starts executors as processes of their own, as a cluster does.  What they write is what the same jobs
write in this process.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from billing.lake import live
from billing.lake.lake import Lake
from billing.lake.live import summed
from billing.lake.months import Month
from billing.lake.tables import LakeTables
from billing.lake.upload import main as seal
from billing.pricing.billing_days import TABLES
from billing.pricing.rated import Rated
from spark_analytics.__main__ import main
from tests.servers.server import Server
from tests.spark_analytics import lakes

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "operations.md", ROOT / "docs" / "analytics.md"]
INSTALLED, MASTER = "/opt/holdfast", "spark://spark.example:7077"
"""The installation and the master that the page names."""
EXECUTORS = 2
SECONDS_MAX = 900.0
"""For one job, on a machine that has much else to do."""
CONFIGURATION = """\
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.ui.enabled false
spark.driver.memory 1g
spark.driver.defaultJavaOptions -XX:TieredStopAtLevel=1
spark.executor.defaultJavaOptions -XX:TieredStopAtLevel=1
spark.executor.memory 1g
spark.network.timeout 600s
spark.executor.heartbeatInterval 60s
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * SECONDS_MAX)]


def commands(page: Path = PAGES[0]) -> list[str]:
    """The lines of a page that start a job on a cluster of Spark."""
    found = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines() if line.startswith("spark-submit ")]


def run(*command: str, **given: Any) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, **given
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    printed: str = done.stdout
    return printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("submit")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """The wheel, built of a copy: setuptools writes beside what it builds."""
    source = folder / "source"
    source.mkdir()
    packages = re.search(r"^root_packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages is not None
    for package in re.findall(r"\"(\w+)\"", packages[1]):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "requirements").mkdir()
    for file in ROOT.glob("requirements/*.in"):
        shutil.copy(file, source / "requirements")
    pip = (sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", str(folder / "dist"), str(source), cwd=folder)
    (found,) = (folder / "dist").glob("holdfast-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path) -> Path:
    """An environment with the wheel; what it needs is this one's, without the checkout."""
    environment = folder / "holdfast"
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    (packages,) = environment.glob("lib/python3*/site-packages")
    pip = (sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--target", str(packages), str(wheel), cwd=folder)
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    where = run(str(environment / "bin" / "python"), "-c", "import billing; print(billing.__file__)", cwd=folder)
    assert where.startswith(str(packages)), "the checkout is not seen"
    return environment


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The variables of a Spark whose executors run a Python that has neither Holdfast nor what it needs."""
    bare, home, configuration = folder / "bare", folder / "spark", folder / "conf"
    run(sys.executable, "-m", "venv", "--without-pip", str(bare))
    missing = subprocess.run(
        [bare / "bin" / "python", "-c", "import billing"], cwd=folder, capture_output=True, check=False
    )
    assert b"No module named 'billing'" in missing.stderr
    home.mkdir()  # executors work below it
    for part in ("bin", "jars", "python", "sbin"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text(CONFIGURATION)
    local = folder / "local"
    yield {
        "PATH": f"{home}/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": f"{bare}/bin/python",
        "SPARK_LOCAL_DIRS": str(local),
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    shutil.rmtree(local, ignore_errors=True)
    shutil.rmtree(home / "work", ignore_errors=True)


@pytest.fixture(scope="module")
def lake(folder: Path) -> Lake:
    """A lake that a service has counted into."""
    lake = Lake(str(folder / "lake"))
    with Server(folder / "service", {"USAGE": "on", "USAGE_LAKE": lake.root, "USAGE_UPLOAD_SECONDS": "1"}) as server:
        client = server.client()
        orders = client.create_queue(QueueName="orders", tags={"team": "a"})["QueueUrl"]
        jobs = client.create_queue(QueueName="jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        for number in range(10):
            client.send_message(QueueUrl=orders, MessageBody="x" * (1 + 8000 * number))
            client.receive_message(QueueUrl=orders)
            client.send_message(QueueUrl=jobs, MessageBody="x", MessageGroupId="g", MessageDeduplicationId=str(number))
        assert server.stop() == 0
    assert seal([str(server.data / "usage"), lake.root]) == 0
    return lake


def made(lake: Lake) -> dict[str, Any]:
    """All that the jobs have made of a lake."""
    tables, streamed = LakeTables(lake), live.read(lake)
    day = datetime.now(UTC).date()
    found: dict[str, Any] = {
        name: lakes.in_order(tables.read(name, tables.days(name)[0], day).to_pylist()) for name in TABLES
    }
    rated = Rated(lake).of(Month(day.year, day.month))
    assert rated is not None
    found["rated"] = sorted(map(repr, rated.lines.to_pylist()))
    assert streamed is not None
    found["live"] = sorted(map(repr, summed(streamed.days.values(), ["account", "kind", "action"]).to_pylist()))
    return found


def test_the_pages_show_the_same_line_for_each_of_the_three() -> None:
    assert [re.findall(r"__main__\.py (\w+)", line) for line in commands()] == [["batch"], ["rate"], ["stream"]]
    assert sorted(commands(PAGES[1])) == sorted(commands())


def test_submitted_from_the_wheel_the_jobs_make_what_they_make_in_one_process(
    spark: SparkSession, folder: Path, installed: Path, cluster: dict[str, str], lake: Lake
) -> None:
    (folder / "accounts.yaml").write_text("default: standard\n")
    shutil.copy(ROOT / "billing" / "pricing" / "prices.example.yaml", folder / "prices.yaml")
    own = Lake(str(folder / "own"))
    shutil.copytree(lake.root, own.root, copy_function=shutil.copy2)  # the stream goes by the files' times
    variables = {
        **cluster,
        "HOLDFAST_USAGE_LAKE": lake.root,
        "PYSPARK_DRIVER_PYTHON": str(installed / "bin" / "python"),
    }
    for line in commands():
        command = line.replace(MASTER, f"'local-cluster[{EXECUTORS},1,1024]'").replace(INSTALLED, str(installed))
        job = command.split("__main__.py ")[1].split()
        if job[0] == "stream":  # which goes on until it is ended
            command += " --once"
            job.append("--once")
        run("bash", "-c", command, env=variables, cwd=folder)
        given = [str(folder / word) if word.endswith(".yaml") else word for word in job]
        assert main([*given, "--lake", own.root]) == 0
    assert made(lake) == made(own)
    calls = sum(row["calls"] for row in made(lake)["usage_hourly"])
    assert calls == 32, "two queues were made, and 30 messages sent and received"
    applications = list((folder / "spark" / "work").iterdir())
    assert len(applications) == 3
    assert all(len(list(application.iterdir())) >= EXECUTORS for application in applications), "executors did run"
    open_to_others = [path for path in Path(lake.root).rglob("*") if path.stat().st_mode & 0o077]
    assert not open_to_others
