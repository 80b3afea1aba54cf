"""A signed-in client: its caller, and the check that its credential is still valid."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from auth.errors import ExpiredToken
from frontend.bearers import Caller

CHECK_SECONDS = 1.0
"""Time for which a check holds: as long as the caches' values do."""


class KafkaSession:
    """The caller of a connection.

    A connection lasts for days, and its credential may end before: so the credential is looked up again every second in
    which it is used.
    """

    __slots__ = ("_check_at", "_renew", "caller", "credential", "expires_s", "mechanism")

    def __init__(
        self, mechanism: str, credential: str, caller: Caller, renew: Callable[[], Awaitable[Caller]], now: float
    ) -> None:
        """``renew`` finds the caller again, or raises an error of sign-ins."""
        self.mechanism = mechanism
        self.credential = credential
        self._renew = renew
        self._use(caller, now)

    async def check(self, now: float) -> Caller:
        """Return the caller with its present rights.

        Raises :class:`~auth.errors.AuthError` if the credential has ended, and the store's errors.
        """
        if now >= self.expires_s:
            raise ExpiredToken
        if now >= self._check_at:
            self._use(await self._renew(), now)
        return self.caller

    def is_of_same_caller(self, other: KafkaSession) -> bool:
        """Return if another sign-in is that of the same caller, by the same mechanism."""
        own, theirs = self.caller.principal, other.caller.principal
        return (self.mechanism, own.account, own.principal_id) == (other.mechanism, theirs.account, theirs.principal_id)

    def lifetime_ms(self, now: float) -> int:
        """Time after which the client has to sign in again; 0: never."""
        return 0 if self.expires_s == math.inf else max(1, int((self.expires_s - now) * 1000))

    def _use(self, caller: Caller, now: float) -> None:
        self.caller = caller
        ends = caller.principal.expires_s
        self.expires_s = math.inf if ends is None else float(ends)
        self._check_at = now + CHECK_SECONDS
