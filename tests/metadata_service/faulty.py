"""A store that fails when it is told to, for tests of what is built on stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from metadata_service.store import MetadataStore, StoreUnavailable


class Faults:
    """Which calls of a store fail.  ``faults.store`` is the store with the faults."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = cast(MetadataStore, _Faulty(store, self))
        self.calls: list[str] = []
        """Every call so far, by the method's name."""
        self._failing: dict[str, Literal["before", "after"]] = {}

    def fail(self, method: str, when: Literal["before", "after"] = "before") -> None:
        """From now on ``method`` raises :class:`StoreUnavailable`: without effect, or after it took effect."""
        self._failing[method] = when

    def heal(self) -> None:
        """From now on everything works."""
        self._failing.clear()

    def _when(self, method: str) -> Literal["before", "after"] | None:
        self.calls.append(method)
        return self._failing.get(method)


class _Faulty:
    def __init__(self, store: MetadataStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self._store, method)

        async def faulty(*arguments: Any, **options: Any) -> Any:
            when = self._faults._when(method)
            if when == "before":
                raise StoreUnavailable(f"{method} was told to fail")
            answer = await call(*arguments, **options)
            if when == "after":
                raise StoreUnavailable(f"{method} was told to fail after it took effect")
            return answer

        return faulty
