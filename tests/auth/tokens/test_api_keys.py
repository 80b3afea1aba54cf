"""API keys: their format, and their stored form."""

import pytest

from auth.tokens.api_keys import is_key, key_id_in, new_api_key

ACCOUNT = "000000000000"


def test_a_new_key_is_recognised_and_nothing_of_its_secret_is_kept() -> None:
    record, text = new_api_key(ACCOUNT, name="ci", scopes=["send"], prefixes=["a-"], expires_s=9)
    assert key_id_in(text.encode()) == record.key_id
    assert is_key(text.encode(), record)
    secret = text.rpartition("_")[2]
    assert len(secret) == 43
    assert secret not in str(record.digest) + repr(record) + str(record.principal)
    assert (record.name, record.scopes, record.prefixes, record.expires_s) == ("ci", ("send",), ("a-",), 9)


def test_new_keys_differ() -> None:
    made = [new_api_key(ACCOUNT) for _ in range(50)]
    assert len({text for _, text in made}) == len({record.key_id for record, _ in made}) == 50


def test_a_key_with_any_character_changed_is_another() -> None:
    record, text = new_api_key(ACCOUNT)
    for position in range(len(text)):
        changed = text[:position] + ("0" if text[position] != "0" else "1") + text[position + 1 :]
        assert not is_key(changed.encode(), record)
    other, _ = new_api_key(ACCOUNT)
    assert not is_key(text.encode(), other)


@pytest.mark.parametrize(
    "wrong",
    ["", "hf_", "hf__", "hf_a_b", "HF_{}", "{}x", "{}\n", " {}", "xx_{}", "hf_{}", "eyJhbGciOiJIUzI1NiJ9.e30.x"],
)
def test_invalid_api_keys(wrong: str) -> None:
    _, text = new_api_key(ACCOUNT)
    assert key_id_in(wrong.format(text).encode()) is None
