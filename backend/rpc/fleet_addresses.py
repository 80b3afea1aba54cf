"""Addresses of the nodes of all backend clusters, from the clusters' reports."""

from __future__ import annotations

import asyncio

from backend.rpc.address import Address
from backend.rpc.cluster_client import ReadNodes
from metadata_service.clusters.directory import ClusterDirectory

REFRESH_SECONDS = 0.5
"""Minimum time between two reads of the backend clusters' reports."""


class FleetAddresses:
    """Addresses of the backend clusters' nodes, from the clusters' reports."""

    def __init__(self, fleet: ClusterDirectory) -> None:
        self._fleet = fleet
        self._refreshed_at = 0.0

    def numbers(self) -> list[int]:
        """Return the numbers of all clusters."""
        return [known.cluster.number for known in self._fleet.known()]

    def of(self, number: int) -> ReadNodes:
        async def read() -> dict[str, Address]:
            await self._refresh()
            return {name: Address.parse(address) for name, address in self._fleet.nodes(number).items()}

        return read

    async def _refresh(self) -> None:
        """Refresh at once, shared by concurrent callers: a caller may know of a node that has just started."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at >= REFRESH_SECONDS:
            self._refreshed_at = now
            await self._fleet.refresh()
