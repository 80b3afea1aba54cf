"""The usage lake: Parquet files of usage records, in a folder or an object store.

``<lake>/usage/date=2026-11-21/hour=07/<name>.parquet``: each file holds records of minutes of that hour (UTC).  A file
appears whole or not at all, and never changes.  A record may be in several files; its id (node, boot, sequence, slot)
identifies duplicates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import fs, parquet

from billing.metering.buffers import sync_folder
from billing.metering.usage import COUNTS, UsageRecord

TABLE: Final = "usage"
"""Folder of the records of calls.  Folders beside it have the records of storage, and computed tables."""

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("minute", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("account", _NAME, nullable=False),
        pa.field("queue", _NAME, nullable=False),
        pa.field("queue_id", pa.int64(), nullable=False),
        pa.field("kind", _NAME, nullable=False),
        pa.field("action", _NAME, nullable=False),
        pa.field("tags", pa.map_(pa.string(), pa.string()), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTS),
        pa.field("node", _NAME, nullable=False),
        pa.field("boot", _NAME, nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
    ]
)
"""Columns, described in ``docs/usage-records.md``.  Columns are only ever added."""


ASIDE: Final = "."
"""Prefix of local files while they are written: Spark and pyarrow ignore them."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class LakeFile(NamedTuple):
    """A file in the lake."""

    path: str
    size_bytes: int
    modified: datetime


class LakeUnavailable(Exception):
    """The lake cannot be written or read now; the text names the file and the reason."""


def table_of(records: Sequence[UsageRecord]) -> pa.Table:
    """Convert records to a table."""
    columns: dict[str, list[object]] = {
        "minute": [record.minute_s * 1000 for record in records],
        "account": [record.key.account for record in records],
        "queue": [record.key.queue for record in records],
        "queue_id": [record.key.queue_id for record in records],
        "kind": [record.key.kind for record in records],
        "action": [record.key.action for record in records],
        "tags": [list(record.key.tags) for record in records],
        **{name: [record.counts[at] for record in records] for at, name in enumerate(COUNTS)},
        "node": [record.node for record in records],
        "boot": [record.boot for record in records],
        "sequence": [record.sequence for record in records],
        "slot": [record.slot for record in records],
    }
    return pa.table([pa.array(columns[field.name], type=field.type) for field in SCHEMA], schema=SCHEMA)


def hour_of(minute_s: int) -> str:
    """Return the folder of an hour, relative to the table's."""
    return datetime.fromtimestamp(minute_s, UTC).strftime("date=%Y-%m-%d/hour=%H")


class Lake:
    """The lake at a URL of any of pyarrow's filesystems, or in a local folder.

    Such as ``s3://bucket/path?region=…``, ``gs://`` or ``file:///``.
    """

    def __init__(self, url: str) -> None:
        """Raises :class:`ValueError` for a URL that no filesystem supports."""
        self.url = url
        self._root: str
        try:
            if "://" in url:
                self._files, root = fs.FileSystem.from_uri(url)
                self._root = root.rstrip("/")
            elif _SCHEME.match(url):
                raise ValueError("a lake's URL is like s3://bucket/path: two slashes follow the colon")
            else:
                self._files, self._root = fs.LocalFileSystem(), os.path.abspath(url)
        except (pa.ArrowException, OSError) as error:
            message = str(error).replace(url, without_secrets(url))
            raise ValueError(f"{without_secrets(url)} cannot be a lake: {message}") from None

    def write(self, hour: str, name: str, table: pa.Table, *, folder: str = TABLE) -> str:
        """Store a table as a file of this hour, as :meth:`write_table` does; returns its path in the lake."""
        path = f"{folder}/{hour}/{name}.parquet"
        self.write_table(path, table)
        return path

    def write_table(self, path: str, table: pa.Table) -> None:
        """Store a table as a Parquet file, atomically; replaces a file of the same path.

        It is durable afterwards, as far as the filesystem guarantees that.  Raises :class:`LakeUnavailable`: then the
        file may exist or not.
        """
        self._write(path, lambda file: parquet.write_table(table, file, compression="zstd"))

    def write_bytes(self, path: str, data: bytes) -> None:
        """Store a file, with the guarantees of :meth:`write_table`."""
        self._write(path, lambda file: file.write(data))

    def write_new(self, path: str, data: bytes) -> None:
        """Create a file, with the guarantees of :meth:`write_table`.

        Raises :class:`FileExistsError` if the path exists.  Of two concurrent writers exactly one succeeds in a folder;
        an object store cannot check, and keeps the last write.
        """
        if not isinstance(self._files, fs.LocalFileSystem) and self.read_bytes(path) is not None:
            raise FileExistsError(f"{path} is there already")
        self._write(path, lambda file: file.write(data), new=True)

    def read_table(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a Parquet file.

        Raises :class:`FileNotFoundError`, :class:`LakeUnavailable`, and :class:`pyarrow.ArrowException` if it is not a
        Parquet file.
        """
        data = self.read_bytes(path)
        if data is None:
            raise FileNotFoundError(path)
        return parquet.read_table(pa.BufferReader(data), columns=columns)

    def read_bytes(self, path: str) -> bytes | None:
        """Read a file; None: it does not exist.  Raises :class:`LakeUnavailable`."""
        try:
            with self._files.open_input_file(self._at(path)) as file:
                data: bytes = file.read()
                return data
        except FileNotFoundError:
            return None
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("read", error) from error

    def footer(self, path: str) -> parquet.FileMetaData | None:
        """Read only the footer of a Parquet file; None: the file does not exist.

        Raises :class:`LakeUnavailable`, and :class:`pyarrow.ArrowException` if it is not a Parquet file.
        """
        try:
            with self._files.open_input_file(self._at(path)) as file:
                return parquet.read_metadata(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable("read", error) from error

    def rows(
        self,
        paths: Sequence[str],
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        account: str | None = None,
        path_as: str | None = None,
    ) -> pa.Table:
        """Read rows of Parquet files with this schema or some of its columns, of one account or of all.

        Columns that a file does not have are null.  ``path_as``: with a last column that ends with a file's path.
        Raises :class:`FileNotFoundError` if one of the files is gone, and :class:`LakeUnavailable`.
        """
        from pyarrow import compute, dataset  # slow imports, which writers do not need

        wanted = None if account is None else compute.field("account") == account
        names = [self._at(path) for path in paths]
        try:
            found = dataset.dataset(names, schema=schema, filesystem=self._files, format="parquet")
            asked = schema.names if columns is None else list(columns)
            if path_as is None:
                return found.to_table(columns=asked, filter=wanted)
            return found.to_table(columns=[*asked, "__filename"], filter=wanted).rename_columns([*asked, path_as])
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("read", error) from error

    def files(self, folder: str, hidden: bool = False) -> list[LakeFile]:
        """List the files below a folder, recursively, sorted by path.  Raises :class:`LakeUnavailable`.

        Files whose name, or a folder of whose path, begins with a dot or an underscore are temporary: they are left out
        unless ``hidden``.
        """
        top = self._at(folder)
        try:
            found = self._files.get_file_info(fs.FileSelector(top, recursive=True, allow_not_found=True))
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("read", error) from error
        below = [(info.path.removeprefix(f"{top}/"), info) for info in found if info.is_file]
        return sorted(
            LakeFile(f"{folder}/{path}", info.size, info.mtime.astimezone(UTC))
            for path, info in below
            if hidden or not any(name.startswith((".", "_")) for name in path.split("/"))
        )

    def paths(self, folder: str) -> list[str]:
        """List the paths of :meth:`files`."""
        return [file.path for file in self.files(folder)]

    def folders(self, folder: str) -> list[str]:
        """List the names of the folders in a folder, sorted.  Raises :class:`LakeUnavailable`."""
        try:
            found = self._files.get_file_info(fs.FileSelector(self._at(folder), allow_not_found=True))
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("read", error) from error
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its content, if it exists.  Raises :class:`LakeUnavailable`."""
        try:
            self._files.delete_dir(self._at(folder))
        except FileNotFoundError:
            pass
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("written", error) from error

    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable that another program, such as Spark, has written; object stores need no sync.

        Raises :class:`LakeUnavailable`, also if one of them does not exist.
        """
        if not isinstance(self._files, fs.LocalFileSystem):
            return
        root = Path(self._root)
        try:
            for path in paths:
                with open(root / path, "rb") as file:
                    os.fsync(file.fileno())
            for folder in {folder for path in paths for folder in Path(path).parents}:
                sync_folder(root / folder)
        except OSError as error:
            raise self._unavailable("written", error) from error

    def remove(self, path: str) -> None:
        """Remove a file, if it exists.  Raises :class:`LakeUnavailable`."""
        try:
            self._files.delete_file(self._at(path))
        except FileNotFoundError:
            pass
        except (pa.ArrowException, OSError) as error:
            raise self._unavailable("written", error) from error

    def _write(self, path: str, write: Callable[[Any], object], new: bool = False) -> None:
        try:
            if isinstance(self._files, fs.LocalFileSystem):
                _write_locally(Path(self._root) / path, write, new)
            else:  # an object exists only when it is complete
                whole = pa.BufferOutputStream()
                write(whole)
                with self._files.open_output_stream(self._at(path)) as file:
                    file.write(whole.getvalue())
        except (pa.ArrowException, OSError) as error:
            if new and isinstance(error, FileExistsError):
                raise
            raise self._unavailable("written", error) from error

    @property
    def root(self) -> str:
        """Folder of the lake; in an object store, the bucket and the folder."""
        return self._root

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _unavailable(self, what: str, error: Exception) -> LakeUnavailable:
        return LakeUnavailable(f"the lake at {without_secrets(self.url)} cannot be {what}: {error}")


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: usage reveals the traffic between parties."""
    return os.open(path, flags, 0o600)


def _write_locally(path: Path, write: Callable[[Any], object], new: bool) -> None:
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(made):  # Path.mkdir applies the mode only to the last folder
        folder.mkdir(mode=0o700, exist_ok=True)
    aside = path.with_name(f"{ASIDE}{path.name}.{os.urandom(8).hex()}")  # not the process id: containers share these
    try:
        with open(aside, "wb", opener=_private) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(aside, path)  # fails if the path exists, a rename would not
        else:
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    for folder in (path.parent, *(folder.parent for folder in made)):
        sync_folder(folder)


def without_secrets(url: str) -> str:
    """Remove the password or key and the options of a URL, so that it can be logged."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    if ":" in re.split("[/?#]", rest, maxsplit=1)[0]:  # a key may contain "/" that should be written as %2F
        rest = rest.rpartition("@")[2]
    place = re.split("[?#]", rest, maxsplit=1)[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
