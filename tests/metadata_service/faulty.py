"""A store with injected failures, for tests of code that uses stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from metadata_service.store import MetadataStore, StoreUnavailable


class Faults:
    """Failing calls of a store.  ``faults.store`` is the store with the faults."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = cast(MetadataStore, _FaultyStore(store, self))
        self.calls: list[str] = []
        """All calls so far, by the method's name."""
        self._failing: dict[str, Literal["before", "after"]] = {}

    def fail(self, method: str, when: Literal["before", "after"] = "before") -> None:
        """Let ``method`` raise :class:`StoreUnavailable` from now on: without effect, or after it took effect."""
        self._failing[method] = when

    def heal(self) -> None:
        """Let all calls work from now on."""
        self._failing.clear()

    def _when(self, method: str) -> Literal["before", "after"] | None:
        self.calls.append(method)
        return self._failing.get(method)


class _FaultyStore:
    def __init__(self, store: MetadataStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, part: str) -> _FaultyPart:
        return _FaultyPart(getattr(self._store, part), self._faults)


class _FaultyPart:
    def __init__(self, part: Any, faults: Faults) -> None:
        self._part = part
        self._faults = faults

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self._part, method)

        async def faulty(*arguments: Any, **options: Any) -> Any:
            when = self._faults._when(method)
            if when == "before":
                raise StoreUnavailable(f"{method} was told to fail")
            answer = await call(*arguments, **options)
            if when == "after":
                raise StoreUnavailable(f"{method} was told to fail after it took effect")
            return answer

        return faulty
