"""Encoders as source: straight-line code for the fields of one layout, with loops for its arrays."""

from __future__ import annotations

from frontend.kafka.protocol.generator.decoders import CODES, encoder_name
from frontend.kafka.protocol.generator.lines import SourceLines
from frontend.kafka.protocol.generator.structures import default_of
from frontend.kafka.protocol.generator.table import TableField, TableMessage, VersionRange


def encoder(message: TableMessage, layout: VersionRange) -> SourceLines:
    """Write the encoder of a layout."""
    return _Encoder(message, layout.first).write(encoder_name(message, layout))


class _Encoder(SourceLines):
    """The source of one encoder.

    Its variables: message, the elements of arrays by their number, and the functions that append to the output.
    """

    def __init__(self, message: TableMessage, version: int) -> None:
        super().__init__()
        self._message = message
        self._version = version
        self._flexible = message.api.is_flexible(version)
        self._codes: list[str] = []
        self._values: list[str] = []
        self._write = "write"
        self._arrays = 0
        self._tagged = 0

    def write(self, name: str) -> SourceLines:
        with self.block(f"def {name}(message: {self._message.name}, write: Write) -> None:"):
            self._structure(self._message.fields, "message")
            self._flush()
            if len(self.lines) == 1:
                self.add("pass")
        return self

    def _structure(self, fields: list[TableField], owner: str) -> None:
        present = [one for one in fields if self._version in one.versions]
        tagged = [one for one in present if self._flexible and one.tag is not None]
        for one in present:
            if one not in tagged:
                self._field(one, f"{owner}.{one.name}")
        if tagged:
            self._tags(tagged, owner)
        elif self._flexible:
            self._codes.append("x")  # no tagged fields

    # --- fixed fields, written at once ---

    def _pend(self, code: str, value: str) -> None:
        self._codes.append(code)
        self._values.append(value)

    def _flush(self) -> None:
        if not self._codes:
            return
        codes = "".join(self._codes)
        if codes == "x":
            self.add(f'{self._write}(b"\\0")')
        else:
            self.call(f"{self._write}({self.packer(codes)}", self._values, "))")
        self._codes, self._values = [], []

    # --- single fields ---

    def _field(self, one: TableField, value: str) -> None:
        if one.is_array:
            self._array(one, value)
        elif one.is_structure:
            self._structure(one.fields, value)
        elif one.kind in CODES:
            self._pend(CODES[one.kind], value)
        elif one.kind == "string" and not one.is_nullable(self._version):
            self._string(one, value)
        else:
            self._flush()
            compact = "compact_" if self._flexible else ""
            self.add(f"write_{compact}{one.kind}({self._write}, {value})")

    def _string(self, one: TableField, value: str) -> None:
        text = f"({value} or '')" if one.nullable else value
        self.add(f"text = {text}.encode()".replace("''", '""'))
        self._length("h", "text")
        self._flush()
        self.add(f"{self._write}(text)")

    def _length(self, code: str, value: str) -> None:
        if self._flexible:
            self._flush()
            self.add(f"{self._write}(encoded_uvarint(len({value}) + 1))")
        else:
            self._pend(code, f"len({value})")

    def _array(self, one: TableField, value: str) -> None:
        if not one.is_nullable(self._version):
            if one.nullable:
                self.add(f"array{self._arrays} = {value} or []")
                value = f"array{self._arrays}"
            self._length("i", value)
            self._flush()
            self._elements(one, value)
            return
        self._flush()
        with self.block(f"if {value} is None:"):
            if self._flexible:
                self.add(f'{self._write}(b"\\0")')
            else:
                self.add(f"{self._write}({self.packer('i')}(-1))")
        with self.block("else:"):
            self._length("i", value)
            self._flush()
            self._elements(one, value)
            self._flush()

    def _elements(self, one: TableField, value: str) -> None:
        if one.kind == "int32":
            self.add(f"write_int32_array({self._write}, {value})")
            return
        self._arrays += 1
        element = f"element{self._arrays}"
        with self.block(f"for {element} in {value}:"):
            if one.is_structure:
                self._structure(one.fields, element)
            else:
                single = TableField(element, one.kind, False, one.versions, None, None, None)
                self._field(single, element)
            self._flush()

    # --- tagged fields ---

    def _tags(self, tagged: list[TableField], owner: str) -> None:
        self._flush()
        self._tagged += 1
        tags, outer = f"tags{self._tagged}", self._write
        self.add(f"{tags}: list[tuple[int, list[Buffer]]] = []")
        for one in tagged:
            value = f"{owner}.{one.name}"
            if one.is_array:
                condition = value
            elif default_of(one) == "None":
                condition = f"{value} is not None"
            elif one.kind == "bool":
                condition = value if default_of(one) == "False" else f"not {value}"
            else:
                condition = f"{value} != {default_of(one)}"
            with self.block(f"if {condition}:"):
                parts = f"{tags}_{one.tag}"
                self.add(f"{parts}: list[Buffer] = []")
                self._write = f"{parts}.append"
                self._field(one, value)
                self._flush()
                self._write = outer
                self.add(f"{tags}.append(({one.tag}, {parts}))")
        self.add(f"write_tags({self._write}, {tags})")
