"""SCRAM keys of access keys, derived on a thread once and cached.

Access keys that do not exist are treated alike, so that an answer and its time do not reveal them: their salts are
computed in the same way, keys are derived from an invented secret, and these are cached.  Invented ones have a thread
and a cache of their own: attackers who try names can neither delay nor displace the keys of others.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from auth.signatures.scram import ScramKeys, derive_keys

KNOWN_MAX = 4096
UNKNOWN_MAX = 1024
WAITING_MAX = 64
"""Maximum number of derivations that wait for one thread."""
_SALT_BYTES = 16


class TooManyDerivations(Exception):
    """Too many other derivations wait.  Try again."""


class _Derivations:
    """Derived keys of one kind, with the thread that derives them."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._kept: OrderedDict[tuple[str, str], tuple[str, ScramKeys]] = OrderedDict()
        """Secret and keys, by mechanism and user."""
        self._under_way: dict[tuple[str, str, str], asyncio.Future[ScramKeys]] = {}
        self._thread: ThreadPoolExecutor | None = None

    async def keys(self, mechanism: str, user: str, secret: str, salt: bytes) -> ScramKeys:
        name = (mechanism, user)
        kept = self._kept.get(name)
        if kept is not None and hmac.compare_digest(kept[0], secret):
            self._kept.move_to_end(name)
            return kept[1]
        wanted = (mechanism, user, secret)
        deriving = self._under_way.get(wanted)
        if deriving is None:
            if len(self._under_way) >= WAITING_MAX:
                raise TooManyDerivations
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "scram")
            loop = asyncio.get_running_loop()
            deriving = loop.run_in_executor(self._thread, derive_keys, mechanism, secret, salt)
            self._under_way[wanted] = deriving
            deriving.add_done_callback(lambda _: self._under_way.pop(wanted))
        keys = await asyncio.shield(deriving)
        self._kept[name] = secret, keys
        self._kept.move_to_end(name)
        if len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
        return keys

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


class ScramKeyCache:
    """Derived keys of a process.  ``naming``: a secret of the service, the same in all processes."""

    def __init__(self, naming: bytes) -> None:
        self._naming = naming
        self._known = _Derivations(KNOWN_MAX)
        self._unknown = _Derivations(UNKNOWN_MAX)

    def salt(self, mechanism: str, user: str) -> bytes:
        """Salt of a user, whether there is one or not: the same each time and in each process."""
        return self._keyed(f"salt/{mechanism}/{user}")[:_SALT_BYTES]

    async def keys(self, mechanism: str, user: str, secret: str | None) -> ScramKeys:
        """Keys of a user; ``secret`` None: there is no such user, and no proof fits.

        Raises :class:`TooManyDerivations`.
        """
        salt = self.salt(mechanism, user)
        if secret is None:
            invented = self._keyed(f"secret/{user}").hex()
            return await self._unknown.keys(mechanism, user, invented, salt)
        return await self._known.keys(mechanism, user, secret, salt)

    def close(self) -> None:
        """Stop the threads."""
        self._known.close()
        self._unknown.close()

    def _keyed(self, text: str) -> bytes:
        return hmac.digest(self._naming, b"holdfast scram " + text.encode(), "sha256")
