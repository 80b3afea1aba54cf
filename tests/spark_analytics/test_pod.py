"""Spark's commands in Kubernetes start the driver and the executors of the image; `make kube` tries the whole."""

from pathlib import Path

import pyspark
import pytest

from spark_analytics.__main__ import main
from spark_analytics.pod import command
from tests.tables import table

HOME = Path(pyspark.__file__).parent
EXECUTOR: dict[str, str] = table(__file__, "executor")


def test_a_driver_is_spark_submit_on_its_own_address() -> None:
    given = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///venv/jobs.py", "stream"]
    found = command(given, {"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"})
    assert found[0] == str(HOME / "bin" / "spark-submit")
    assert Path(found[0]).exists()
    assert found[1:] == ["--conf", "spark.driver.bindAddress=10.1.2.3", "--deploy-mode", "client", *given[1:]]


def test_an_executor_is_java_with_what_its_variables_say() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-D{number}=a b" for number in range(11)}
    found = command(["executor"], {**EXECUTOR, **options, "JAVA_HOME": "/java", "SPARK_CONF_DIR": "/opt/spark/conf"})
    assert found[:14] == ["/java/bin/java", *(f"-D{number}=a b" for number in range(11)), "-Xms2g", "-Xmx2g"]
    assert found[14:16] == ["-cp", f"/opt/spark/conf:{HOME}/jars/*"]
    arguments = dict(zip(found[17::2], found[18::2], strict=True))
    assert arguments == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.3",
        "--resourceProfileId": "0",
        "--podName": "stream-exec-7",
    }


@pytest.mark.parametrize(
    ("role", "missing"), [("driver", "SPARK_DRIVER_BIND_ADDRESS"), ("executor", "SPARK_EXECUTOR_MEMORY")]
)
def test_a_call_by_hand_is_refused_with_a_reason(
    role: str, missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(missing, raising=False)
    assert main([role]) == 1
    assert f"{role} is the entry point of Spark on Kubernetes, but {missing} is not set" in capsys.readouterr().err
