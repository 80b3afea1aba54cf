"""The port of Kafka's clients, the address that they are given, and the option ``--kafka``."""

import logging

import pytest

from backend.rpc.address import Address
from holdfast.commands import main as commands
from holdfast.http.listener import CannotListen, bind
from holdfast.kafka.address import advertised, bind_kafka
from holdfast.settings import Settings
from tests.servers.server import free_port


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (Settings(host="10.0.0.1", kafka_port=9092), Address(host="10.0.0.1", port=9092)),
        (Settings(kafka_port=9092, kafka_address="mq.example.com:19092"), Address(host="mq.example.com", port=19092)),
    ],
)
def test_clients_are_given_the_address_of_the_settings_or_that_of_the_port(
    settings: Settings, address: Address
) -> None:
    assert advertised(settings) == address


def test_without_a_port_nothing_is_bound() -> None:
    assert bind_kafka(Settings(host="nowhere.invalid")) == []


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "127.0.0.1", "kafka_address": "[::]:9092"}, True),
        ({"host": "0.0.0.0", "kafka_address": "mq.example.com:9092"}, False),
        ({"host": "localhost"}, False),
    ],
)
def test_an_address_that_clients_cannot_use_is_warned_of(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], warns: bool
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.kafka"):
        for bound in bind_kafka(Settings(**settings, kafka_port=free_port())):  # type: ignore[arg-type]
            bound.close()
    assert ["set kafka_address" in record.message for record in caplog.records] == [True] * warns


def test_a_port_in_use_is_an_error() -> None:
    (taken,) = bind("127.0.0.1", 0)
    with taken:
        taken.listen()
        with pytest.raises(CannotListen, match="in use by another program; choose another with kafka_port"):
            bind_kafka(Settings(kafka_port=taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("arguments", "given", "port"),
    [([], None, 0), (["--kafka"], None, 9092), (["--kafka"], "19092", 19092), ([], "19092", 19092)],
)
def test_the_option_is_a_port_unless_one_is_set(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], given: str | None, port: int
) -> None:
    started: list[Settings] = []

    def start(*arguments: object) -> int:
        assert isinstance(arguments[-1], Settings)
        started.append(arguments[-1])
        return 0

    monkeypatch.setattr(commands, "_serve", start)
    monkeypatch.setattr(commands, "_frontend", start)
    monkeypatch.delenv("HOLDFAST_KAFKA_PORT", raising=False)
    if given is not None:
        monkeypatch.setenv("HOLDFAST_KAFKA_PORT", given)
    assert commands.main(["serve", *arguments]) == commands.main(["frontend", *arguments]) == 0
    assert [settings.kafka_port for settings in started] == [port, port]
