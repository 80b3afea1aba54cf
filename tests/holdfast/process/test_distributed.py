"""``holdfast backend`` and ``holdfast frontend`` on many machines: errors for inconsistent settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from backend.rpc.address import Address
from holdfast.commands.main import main
from holdfast.http.certificate import CertificateUnusable
from holdfast.runtime.peer_tls import advertised, peer_tls
from holdfast.settings import Settings, SettingsError, load
from tests.holdfast.pairs import make_cluster_files

SECRET = {"CLUSTER_SECRET": "the secret of this cluster"}
CASSANDRA = {**SECRET, "CASSANDRA": "127.0.0.1"}


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        (["backend"], SECRET, "a backend needs listen: host:port, or unix:/path for frontends on the same machine"),
        (["backend"], CASSANDRA, "backend_node has to name this backend among those of its cluster"),
        (["backend", "--backend-node", "b1"], CASSANDRA, "a backend needs listen"),
        (["backend", "--backend-node", "b 1"], CASSANDRA, "--backend-node cannot be 'b 1'"),
        (
            ["backend", "--backend-node", "b1", "--listen", "unix:/x"],
            CASSANDRA,
            "is reached from other machines: listen has to be host:port",
        ),
        (
            ["backend", "--backend-node", "b1", "--listen", "0.0.0.0:9400"],
            CASSANDRA,
            "a backend that listens on all addresses (0.0.0.0:9400) needs advertise",
        ),
        (["backend", "--listen", "9400"], SECRET, "listen: '9400' is no address of a backend"),
        (["backend", "--advertise", "me"], SECRET, "advertise: 'me' is no address of a backend"),
        (
            ["backend", "--metadata-nodes", "m1=http://10.0.0.1:9401"],
            SECRET,
            "a backend of a cluster keeps its journal in Cassandra: cassandra has to say where that is",
        ),
        (["manager"], SECRET, "a manager needs cassandra or metadata_nodes: it is for a service on many machines"),
        (["manager"], {"CASSANDRA": "127.0.0.1"}, "the processes of a cluster need a cluster_secret"),
        (["manager", "--partition-rate", "10"], CASSANDRA, "partition_rate has to be 1000 or more, or 0 for none"),
        (["frontend"], SECRET, "a frontend needs --backend, the address of the backend on this machine, or"),
        (
            ["frontend", "--backend", "unix:/x"],
            CASSANDRA,
            "--backend is for a backend on this machine, with which the data folder is shared; with cassandra or",
        ),
        (["backend", "--cluster", "Main"], CASSANDRA, "--cluster cannot be 'Main'"),
        (["frontend"], {"CASSANDRA": "127.0.0.1"}, "the processes of a cluster need a cluster_secret"),
        (
            ["frontend"],
            {**CASSANDRA, "CLUSTER_TLS_CA": "ca.pem"},
            "cluster_tls_ca, cluster_tls_cert, cluster_tls_key can only be given together, and here is only "
            "cluster_tls_ca",
        ),
        (["serve"], {"CASSANDRA": "127.0.0.1"}, "cassandra is for a service in parts"),
    ],
)
def test_settings_that_do_not_fit_are_told(
    arguments: Sequence[str],
    settings: Mapping[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["keyring", "show"], ["keyring", "rotate"]])
def test_commands_for_a_data_folder_say_so(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CASSANDRA", "127.0.0.1")
    assert main(command) == 1
    assert (
        "this command works on a data folder, and the settings (cassandra, metadata_nodes)" in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    settings = {f"HOLDFAST_{name}": path for name, path in make_cluster_files(tmp_path).items()}
    tls = peer_tls(load({}, settings))
    assert tls.server is not None
    assert tls.context is not None
    assert peer_tls(Settings()) == (None, None)
    (tmp_path / "cluster-key.pem").write_text("no key")
    with pytest.raises(CertificateUnusable, match=r"cluster-cert.pem with key .*cluster-key.pem .* cannot be used"):
        peer_tls(load({}, settings))


def test_others_reach_a_backend_where_it_listens_or_where_it_says() -> None:
    listening = Address.parse("10.0.0.5:9400")
    assert advertised(Settings(), listening) == listening
    assert str(advertised(Settings(advertise="b1.example:9400"), Address.parse("[::]:9400"))) == "b1.example:9400"
    with pytest.raises(SettingsError, match="needs advertise"):
        advertised(Settings(), Address.parse("[::]:9400"))


def test_a_keyring_file_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keyring.toml"
    assert main(["keyring", "create", "--keyring-file", str(file)]) == 0
    made = file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert main(["keyring", "create", "--keyring-file", str(file)]) == 1
    assert f"there is a file {file} already. Nothing was changed" in capsys.readouterr().err
    assert file.read_text() == made
    assert main(["keyring", "create", "--keyring-file", str(tmp_path / "none" / "keyring.toml")]) == 1
