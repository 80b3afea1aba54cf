"""Bodies of messages: each is unique, and can be checked by itself."""

from hashlib import blake2b


def body_of(key: str, length: int) -> str:
    """Make the body of the message ``key``; each body is unique."""
    pattern = blake2b(f"{key}/{length}".encode(), digest_size=16).hexdigest()
    return f"{key} {length} " + (pattern * (length // 32 + 1))[:length]


def key_of(body: str) -> str | None:
    """Return the key of a body; None if it was not made by :func:`body_of`."""
    key, _, rest = body.partition(" ")
    length = rest.partition(" ")[0]
    return key if length.isdigit() and body == body_of(key, int(length)) else None
