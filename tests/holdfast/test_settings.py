"""Sources of settings, their precedence, and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.settings import DeclaredQueue, Settings, SettingsError, describe, load, table

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("port", "it is a whole number"),
        ("connections_per_client_limit", "it is a whole number"),
        ("idle_seconds", "it is a number"),
        ("auto_create_queues", "it is true or false"),
    ],
)
def test_what_a_value_has_to_be_is_said_plainly(name: str, wanted: str) -> None:
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


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"HOLDFAST_PROT": "1"}, "HOLDFAST_PROT in the environment is no setting"),
        ({"HOLDFAST_Port": "1"}, "HOLDFAST_Port in the environment is no setting"),
        ({"HOLDFAST_QUEUES": "a"}, "HOLDFAST_QUEUES in the environment is no setting"),
        ({"HOLDFAST_PORT": "http"}, "HOLDFAST_PORT cannot be 'http'"),
        ({"HOLDFAST_PORT": "65536"}, "HOLDFAST_PORT cannot be '65536'"),
        ({"HOLDFAST_REGION": "Über"}, "HOLDFAST_REGION cannot be"),
        ({"HOLDFAST_DATA": ""}, "HOLDFAST_DATA cannot be ''"),
        ({"HOLDFAST_LOG_LEVEL": "loud"}, "HOLDFAST_LOG_LEVEL cannot be 'loud'"),
        ({"HOLDFAST_QUEUE_NAME_HOLD_SECONDS": "-1"}, "HOLDFAST_QUEUE_NAME_HOLD_SECONDS cannot be '-1'"),
        ({"HOLDFAST_QUEUE_NAME_HOLD_SECONDS": "nan"}, "HOLDFAST_QUEUE_NAME_HOLD_SECONDS cannot be 'nan'"),
        (
            {"HOLDFAST_EXTERNAL_URL": "example.com"},
            "external_url has to be like https://",
        ),
        ({"HOLDFAST_ACCOUNT": "12"}, "account: an account is 12 digits, not '12'"),
        ({"HOLDFAST_DEFAULT_LIMITS": "sends=5"}, "default_limits: 'sends' is no limit; there are calls, send"),
        (
            {"HOLDFAST_RATE_LIMIT_STORAGE": "redis://user:secret@host:x"},
            "rate_limit_storage: limits are kept at memory://, redis://host:port/database, "
            "rediss://host:port/database or unix:///path/of/socket, not at 'redis://host:x'",
        ),
        ({"HOLDFAST_RATE_LIMIT_PROCESSES": "0"}, "HOLDFAST_RATE_LIMIT_PROCESSES cannot be '0'"),
        ({"HOLDFAST_TLS_CERT": "a.pem"}, "tls_cert and tls_key can only be given together"),
        ({"HOLDFAST_ROOT_ACCESS_KEY_ID": "A" * 20}, "root_access_key_id and root_secret_access_key can only"),
        ({"HOLDFAST_HEALTH_LISTEN": "9480"}, "health_listen: '9480' is no address"),
        ({"HOLDFAST_HEALTH_LISTEN": "unix:/x"}, "health_listen has to be host:port, not 'unix:/x'"),
        ({"HOLDFAST_CONFIG": "/none.toml"}, "the settings file /none.toml cannot be read: No such file"),
    ],
)
def test_what_cannot_be_used_is_named(environment: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load({}, environment)
    assert str(raised.value).startswith(why)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('prot = 1\n[colour]\nx = "y"', "unknown in the settings file {file}: colour, prot"),
        ('port = "1"', "port in {file} cannot be '1'"),
        ("port = ", "the settings file {file} is no TOML"),
        ('[[queues]]\nnaem = "a"', "queues in {file} cannot be this: Object contains unknown field `naem`"),
        ("[[queues]]", "queues in {file} cannot be this: Object missing required field `name`"),
        ('[[queues]]\nname = "a"\n[[queues]]\nname = "a"', "queue 'a' is declared twice"),
    ],
)
def test_what_cannot_be_used_in_the_file_is_named(file: Path, content: str, why: str) -> None:
    file.write_text(content)
    with pytest.raises(SettingsError) as raised:
        load({}, {}, file)
    assert str(raised.value).startswith(why.format(file=file))


def test_the_secret_is_told_nowhere() -> None:
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
