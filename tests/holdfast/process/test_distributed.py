"""Parts of a service on many machines: their certificates and addresses."""

from pathlib import Path

import pytest

from backend.rpc.address import Address
from holdfast.http.certificate import CertificateUnusable
from holdfast.runtime.peer_tls import advertised, peer_tls
from holdfast.settings import Settings, SettingsError, load
from tests.holdfast.pairs import make_cluster_files


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    settings = {f"HOLDFAST_{name}": path for name, path in make_cluster_files(tmp_path).items()}
    tls = peer_tls(load({}, settings))
    assert tls.server is not None
    assert tls.context is not None
    assert peer_tls(Settings()) == (None, None)
    (tmp_path / "cluster-key.pem").write_text("no key")
    with pytest.raises(CertificateUnusable, match=r"cluster-cert.pem with key .*cluster-key.pem .* cannot be used"):
        peer_tls(load({}, settings))


def test_a_backend_is_reached_at_its_listener_or_its_advertised_address() -> None:
    listening = Address.parse("10.0.0.5:9400")
    assert advertised(Settings(), listening) == listening
    assert str(advertised(Settings(advertise="b1.example:9400"), Address.parse("[::]:9400"))) == "b1.example:9400"
    with pytest.raises(SettingsError, match="needs advertise"):
        advertised(Settings(), Address.parse("[::]:9400"))
