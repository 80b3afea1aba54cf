"""Tenants and keys: generated values, and their representations."""

import pytest

from auth.credentials import ApiKey, ServiceKey, check_access_key, check_account, new_access_key, new_principal_id

ACCOUNT = "000000000000"


def test_the_secret_is_in_no_repr() -> None:
    key = new_access_key(ACCOUNT)
    assert key.secret not in repr(key)
    assert key.secret not in f"{[key]} {key!s}"


def test_nothing_secret_is_in_the_repr_of_other_keys() -> None:
    api_key = ApiKey("k" * 16, b"digest-of-the-key", ACCOUNT, new_principal_id())
    service_key = ServiceKey("kid", "session", b"secret-of-the-service", 0)
    assert "digest" not in f"{[api_key]} {api_key!s}"
    assert "secret" not in f"{[service_key]} {service_key!s}"


def test_names_of_keys_in_policies() -> None:
    key = new_access_key(ACCOUNT)
    assert key.principal.arn == f"arn:aws:iam::{ACCOUNT}:root"
    api_key = ApiKey("k" * 16, b"", ACCOUNT, "AIDA", name="worker")
    assert api_key.principal.arn == f"arn:aws:iam::{ACCOUNT}:user/worker"
    assert api_key.principal.credential == "hf_" + "k" * 16


def test_new_keys_differ_and_are_valid() -> None:
    keys = [new_access_key(ACCOUNT) for _ in range(50)]
    assert len({key.access_key_id for key in keys}) == len({key.secret for key in keys}) == 50
    for key in keys:
        check_access_key(key.access_key_id, key.secret)
        assert len(key.secret) == 40


def test_checks() -> None:
    assert check_account(ACCOUNT) == ACCOUNT
    for wrong in ["", "1", "0000000000000", "00000000000a", "٠" * 12]:
        with pytest.raises(ValueError, match="12 digits"):
            check_account(wrong)
    with pytest.raises(ValueError, match="access key id"):
        check_access_key("short", "s" * 40)
    for secret in ["short", "with a space in it", "s" * 129, "tab\tinside"]:
        with pytest.raises(ValueError, match="secret access key") as raised:
            check_access_key("AKIAEXAMPLE000000000", secret)
        assert secret not in str(raised.value)
