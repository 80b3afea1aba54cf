"""Sources of settings, their precedence, and refused values."""

from pathlib import Path

import pytest

from holdfast.settings import (
    DeclaredQueue,
    DeclaredSubscription,
    DeclaredTopic,
    Settings,
    SettingsError,
    describe,
    load,
    table,
)
from tests.tables import beside

ROOT = Path(__file__).resolve().parents[2]
REFUSED = beside(__file__, "settings.yaml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.toml"


def test_defaults() -> None:
    settings = load({}, {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.region) == ("127.0.0.1", 9324, "us-east-1")
    assert settings.account == "000000000000"
    assert (settings.queue_name_hold_seconds, settings.purge_interval_seconds) == (60, 60)
    assert settings.deduplication_window_seconds == 300


def test_flags_before_environment_before_file_before_defaults(file: Path) -> None:
    file.write_text('port = 1\nregion = "eu-a"\nhost = "h"')
    environment = {"HOLDFAST_PORT": "2", "HOLDFAST_REGION": "eu-b"}
    settings = load({"port": "3"}, environment, file)
    assert (settings.port, settings.region, settings.host, settings.account) == (3, "eu-b", "h", "000000000000")


def test_the_file_can_be_named_in_the_environment(file: Path) -> None:
    file.write_text("port = 1")
    assert load({}, {"HOLDFAST_CONFIG": str(file)}).port == 1
    other = file.with_name("other.toml")
    other.write_text("port = 2")
    assert load({}, {"HOLDFAST_CONFIG": str(file)}, other).port == 2


def test_text_stands_for_numbers_and_booleans() -> None:
    environment = {
        "HOLDFAST_AUTO_CREATE_QUEUES": "true",
        "HOLDFAST_FORBID_DELETING_NONEMPTY_QUEUES": "0",
        "HOLDFAST_QUEUE_NAME_HOLD_SECONDS": "0.5",
        "HOLDFAST_DATA": "~/queues",
    }
    settings = load({}, environment)
    assert settings.auto_create_queues is True
    assert settings.forbid_deleting_nonempty_queues is False
    assert settings.queue_name_hold_seconds == 0.5
    assert settings.data == Path.home() / "queues"


@pytest.mark.parametrize(("name", "wanted"), beside(__file__, "tables.yaml")["types of values"])
def test_the_type_of_a_value_is_named(name: str, wanted: str) -> None:
    with pytest.raises(SettingsError, match=f"^HOLDFAST_{name.upper()}.* cannot be 'foo': {wanted}$"):
        load({}, {f"HOLDFAST_{name.upper()}": "foo"})


def test_queues_are_declared_in_the_file(file: Path) -> None:
    file.write_text(
        '[[queues]]\nname = "a"\ntags = { team = "x" }\n'
        '[queues.attributes]\nDelaySeconds = 5\nRedrivePolicy = { maxReceiveCount = 3 }\n[[queues]]\nname = "b"\n'
    )
    assert load({}, {}, file).queues == (
        DeclaredQueue("a", {"DelaySeconds": 5, "RedrivePolicy": {"maxReceiveCount": 3}}, {"team": "x"}),
        DeclaredQueue("b"),
    )


def test_topics_are_declared_in_the_file(file: Path) -> None:
    file.write_text(
        '[[topics]]\nname = "a"\ntags = { team = "x" }\n[topics.attributes]\nDisplayName = "A"\n'
        '[[topics.subscriptions]]\nqueue = "q"\nattributes = { RawMessageDelivery = true }\n[[topics]]\nname = "b"\n'
    )
    subscription = DeclaredSubscription("q", {"RawMessageDelivery": True})
    assert load({}, {}, file).topics == (
        DeclaredTopic("a", {"DisplayName": "A"}, {"team": "x"}, (subscription,)),
        DeclaredTopic("b"),
    )


@pytest.mark.parametrize(("environment", "why"), REFUSED["environment"])
def test_a_setting_that_cannot_be_used_is_named(environment: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load({}, {f"HOLDFAST_{name}": value for name, value in environment.items()})
    assert str(raised.value).startswith(why)


@pytest.mark.parametrize(("content", "why"), REFUSED["file"])
def test_a_settings_file_that_cannot_be_used_is_named(file: Path, content: str, why: str) -> None:
    file.write_text(content)
    with pytest.raises(SettingsError) as raised:
        load({}, {}, file)
    assert str(raised.value).startswith(why.format(file=file))


def test_the_secret_is_never_printed() -> None:
    secret = "a-secret-of-some-length"
    environment = {"HOLDFAST_ROOT_ACCESS_KEY_ID": "A" * 20, "HOLDFAST_ROOT_SECRET_ACCESS_KEY": secret}
    assert secret not in repr(load({}, environment))
    for bad in ({"HOLDFAST_ROOT_ACCESS_KEY_ID": "A"}, {"HOLDFAST_ROOT_SECRET_ACCESS_KEY": secret + " "}):
        with pytest.raises(SettingsError) as raised:
            load({}, environment | bad)
        assert secret not in str(raised.value)


def test_every_setting_is_described() -> None:
    described = list(describe())
    assert [setting.name for setting in described] == list(Settings.__struct_fields__)
    assert all(setting.description for setting in described)


def test_the_documentation_has_the_table() -> None:
    """Regenerate it with ``python -c 'from holdfast.settings import table; print(table())'``."""
    assert table() in (ROOT / "docs" / "operations.md").read_text()
