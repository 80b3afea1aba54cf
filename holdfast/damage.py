"""``holdfast damage``: what of the journal cannot be served, and accepting that it is lost."""

from __future__ import annotations

from backend.damage import accept as accept_loss
from backend.damage import survey
from backend.journal.disk import RealDisk
from backend.journal.segments import LogInUse
from holdfast.offline import run_stopped
from holdfast.settings import Settings
from metadata_service.opening import CannotOpen
from metadata_service.sqlite import SQLiteStore


def show_damage(settings: Settings, *, accept: bool) -> int:
    """Print what is damaged, accept it if asked, and return the exit code: 1 if the folder cannot be looked at."""
    return run_stopped(settings, lambda: _show(settings, accept), (CannotOpen, LogInUse))


async def _show(settings: Settings, accept: bool) -> int:
    store = SQLiteStore(settings.metadata_file)
    try:
        found = await survey(RealDisk(), str(settings.journal_folder), store)
        if not (found.harms or found.logs):
            print("Nothing is damaged that would keep a queue from being served.")
            return 0
        print(found)
        if not accept:
            print("\nThe rest is served.  To accept that this is lost: holdfast damage accept --data", settings.data)
            return 0
        await accept_loss(found, store)
        print("\nAccepted.  Start the service, and look once more: there may be damage behind this.")
        return 0
    finally:
        await store.close()
