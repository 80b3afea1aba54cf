"""Manifest of a backup: the list of its files, written last, which makes the backup valid.

A target holds ``backups/<name>.json``, one for each backup, and ``data/<ab>/<sha-256>``, the contents of files:
the backups of one target share equal contents.
"""

from __future__ import annotations

import re
import secrets
import time
from hashlib import sha256
from typing import Final, Literal

import msgspec

from holdfast.backup import layout
from holdfast.backup.signature import ManifestSignatureRefused, ManifestSigner, Signature

FORMAT: Final = 1
FOLDER: Final = "backups"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}\Z")
_CHECK = re.compile(r"[0-9a-f]{64}\Z")
_FILES_OF_FOLDER = re.compile(
    r"metadata\.sqlite|journal/extents/[0-9a-f-]{1,64}\.ext"
    r"|journal/[^/\x00-\x1f]{1,255}/(?:[0-9]{1,20}\.log|ckpt-[0-9]{1,20}\.bin)"
)
_FOLDERS_OF_FOLDER = re.compile(r"journal(?:/[^/\x00-\x1f]{1,255})?")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


class BackupUnusable(Exception):
    """A backup does not exist, or is damaged; the text says which."""


class BackedUpFile(msgspec.Struct, frozen=True):
    """A file in a backup."""

    path: str
    """Path below the data folder, or in the layout of a service in Cassandra."""
    size_bytes: int
    sha256: str

    @property
    def content(self) -> str:
        """Path of its content in the target."""
        return f"data/{self.sha256[:2]}/{self.sha256}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup."""

    format: int = FORMAT
    form: Literal["folder", "cassandra"] = "folder"
    """``folder``: the files of a data folder.  ``cassandra``: a service in Cassandra, converted to files."""
    name: str
    version: str
    """Version of the Holdfast that made it."""
    schema: int
    """Schema version of the metadata."""
    started_ms: int = msgspec.field(name="began_ms")
    """Start of the backup: everything acknowledged before is in it, unless deleted since."""
    moment_ms: int
    """Moment of the backup's state, by the clock of the machine that made it, as the other times."""
    ended_ms: int
    queues: int
    topics: int = 0
    """Topics of Kafka's protocol."""
    master_keys: tuple[str, ...]
    """Ids of the master keys needed to read it; they are not in it."""
    folders: tuple[str, ...]
    """Folders below the data folder, also empty ones; none for a service in Cassandra."""
    files: tuple[BackedUpFile, ...]
    missing: tuple[str, ...] = ()
    """Files that were missing in the service, which was damaged before."""
    clusters: tuple[str, ...] = ()
    """Names of the backend clusters, for a service in Cassandra."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class _Written(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw
    signature: Signature | None = None


def new_name() -> str:
    """Name for a backup that begins now; names sort by time."""
    now_ms = time.time_ns() // 1_000_000
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now_ms // 1000))}.{now_ms % 1000:03d}Z-{secrets.token_hex(3)}"


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def path_of(name: str) -> str:
    """Path of this backup's manifest in its target."""
    return f"{FOLDER}/{name}.json"


def encode(manifest: Manifest, signer: ManifestSigner | None = None) -> bytes:
    """Encode the manifest, signed if a signer is given."""
    body = msgspec.json.encode(manifest)
    signature = None if signer is None else signer.sign(manifest.name, body)
    return msgspec.json.encode(_Written(_check_of(body, signature), msgspec.Raw(body), signature))


def decode(data: bytes, name: str, signer: ManifestSigner | None = None) -> Manifest:
    """Decode the manifest of this backup; with a signer, it has to be signed.

    Raises :class:`BackupUnusable`.
    """
    try:
        written = msgspec.json.decode(data, type=_Written)
        body = bytes(written.manifest)
        if _check_of(body, written.signature) != written.sha256:
            raise BackupUnusable(f"the manifest of the backup {name} is damaged ({path_of(name)})")
        if signer is not None:
            try:
                signer.check(name, body, written.signature)
            except ManifestSignatureRefused as error:
                raise BackupUnusable(f"the backup {name} {error} ({path_of(name)})") from None
        found = msgspec.json.decode(body)
        if isinstance(found, dict) and found.get("format") != FORMAT:
            raise BackupUnusable(
                f"the backup {name} has the format {found.get('format')}, and this Holdfast reads only {FORMAT}: use "
                f"the version that made it ({found.get('version')}), or a later one than this"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupUnusable(f"the manifest of the backup {name} is damaged ({path_of(name)}): {error}") from error
    if manifest.name != name:
        raise BackupUnusable(
            f"the manifest of the backup {name} is that of another one, {manifest.name} ({path_of(name)})"
        )
    for path, is_known in (
        *((folder, manifest.form == "folder" and _FOLDERS_OF_FOLDER.fullmatch(folder)) for folder in manifest.folders),
        *((file.path, _is_file_of(manifest.form, file.path)) for file in manifest.files),
    ):
        if not is_known or any(part in ("", ".", "..") for part in path.split("/")):
            raise BackupUnusable(f"the backup {name} names an invalid file: {path[:200]!r}")
    if len({file.path for file in manifest.files}) != len(manifest.files):
        raise BackupUnusable(f"the backup {name} names a file twice")
    for file in manifest.files:
        if not _CHECK.match(file.sha256) or file.size_bytes < 0:
            raise BackupUnusable(f"the backup {name} has no valid checksum of the file {file.path!r}")
    return manifest


def _check_of(body: bytes, signature: Signature | None) -> str:
    return sha256(body if signature is None else body + msgspec.json.encode(signature)).hexdigest()


def _is_file_of(form: str, path: str) -> bool:
    if form == "folder":
        return _FILES_OF_FOLDER.fullmatch(path) is not None
    if path == layout.METADATA:
        return True
    place = layout.place_of(path)
    return place is not None and _CLUSTER_NAME.fullmatch(place.cluster) is not None
