"""Rows of numbers in packed columns: added at one end, removed at the other.

A block holds a fixed number of rows.  A full block never changes again, so a checkpoint refers to it as it was written:
rows removed from the front of a block are remembered beside it, not in it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from backend.engine.blocks import Ref


class LineBlock:
    """Columns of consecutive rows."""

    __slots__ = ("columns", "ref")

    def __init__(self, codes: str) -> None:
        self.columns: tuple[array[int], ...] = tuple(array(code) for code in codes)
        self.ref: Ref | None = None
        """Reference to this block in the last checkpoint; None if it has changed since."""

    def __len__(self) -> int:
        return len(self.columns[0])


class PackedLines:
    """The rows, addressed by their index; index 0 is the oldest row that was not removed."""

    __slots__ = ("_length", "blocks", "codes", "per_block", "start")

    def __init__(self, codes: str, per_block: int) -> None:
        self.codes = codes
        self.per_block = per_block
        self.blocks: list[LineBlock] = []
        self.start = 0
        """Number of removed rows in the first block."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, *row: int) -> None:
        blocks = self.blocks
        if not blocks or len(blocks[-1]) >= self.per_block:
            blocks.append(LineBlock(self.codes))
        block = blocks[-1]
        for column, value in zip(block.columns, row, strict=True):
            column.append(value)
        block.ref = None
        self._length += 1

    def replace_last(self, *row: int) -> None:
        block = self.blocks[-1]
        for column, value in zip(block.columns, row, strict=True):
            column[-1] = value
        block.ref = None

    def drop(self, count: int) -> None:
        """Remove the oldest rows."""
        assert 0 <= count <= self._length
        self._length -= count
        self.start += count
        gone = self.start // self.per_block
        if not self._length:
            gone, self.start = len(self.blocks), 0
        else:
            self.start -= gone * self.per_block
        del self.blocks[:gone]

    def clear(self) -> None:
        self.drop(self._length)

    def row(self, index: int) -> tuple[int, ...]:
        block, at = divmod(self.start + index, self.per_block)
        return tuple(column[at] for column in self.blocks[block].columns)

    def value(self, column: int, index: int) -> int:
        block, at = divmod(self.start + index, self.per_block)
        return self.blocks[block].columns[column][at]

    def rows(self, first: int = 0) -> Iterator[tuple[int, ...]]:
        for index in range(first, self._length):
            yield self.row(index)

    def count_below(self, column: int, bound: int) -> int:
        """Return the number of rows whose value is at most ``bound``, in a column that rises."""
        return bisect_right(range(self._length), bound, key=lambda index: self.value(column, index))

    def first_min(self, column: int, bound: int, first: int = 0) -> int:
        """Return the index of the first row from ``first`` on whose value is at least ``bound``; the number of rows if
        there is none.
        """
        index = first
        while index < self._length:
            block, at = divmod(self.start + index, self.per_block)
            values = self.blocks[block].columns[column][at:]
            if max(values) >= bound:
                return index + next(step for step, value in enumerate(values) if value >= bound)
            index += len(values)
        return self._length

    def restore(self, columns: Sequence[bytes], ref: Ref) -> None:
        """Append a block from a checkpoint; :meth:`restored` follows the last one."""
        block = LineBlock(self.codes)
        for column, data in zip(block.columns, columns, strict=True):
            column.frombytes(data)
        block.ref = ref
        self.blocks.append(block)

    def restored(self, start: int) -> None:
        """Set the number of removed rows in the first block."""
        self.start = start
        self._length = sum(len(block) for block in self.blocks) - start
