"""Decoders as source: straight-line code for the fields of one layout, with loops for its arrays."""

from __future__ import annotations

import struct

from frontend.kafka.protocol.generator.lines import SourceLines
from frontend.kafka.protocol.generator.structures import annotation, default_of
from frontend.kafka.protocol.generator.table import TableField, TableMessage, VersionRange

CODES = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uuid": "16s"}
"""The types of fixed length, as formats of struct."""
_OBJECT_BYTES = {"bool": 0, "string": 76, "bytes": 33, "uuid": 49, "records": 184}
"""The highest memory of a value beyond its own bytes, as CPython allocates it; an integer has 32."""
_SLOT_BYTES = 9
"""The memory of an element's place in a list that grows."""


def decoder_name(message: TableMessage, layout: VersionRange) -> str:
    """Return the name of the function that decodes a layout."""
    return _function("decode", message, layout)


def encoder_name(message: TableMessage, layout: VersionRange) -> str:
    """Return the name of the function that encodes a layout."""
    return _function("encode", message, layout)


def _function(verb: str, message: TableMessage, layout: VersionRange) -> str:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in message.name)
    versions = "_".join(map(str, sorted(set(layout))))
    return f"{verb}{words}_{versions}"


def decoder(message: TableMessage, layout: VersionRange) -> SourceLines:
    """Write the decoder of a layout."""
    return _Decoder(message, layout.first).write(decoder_name(message, layout))


def size_min(fields: list[TableField], version: int, flexible: bool) -> int:
    """Return the smallest length in bytes of a structure with these fields."""
    return int(flexible) + sum(
        _field_size_min(one, version, flexible)
        for one in fields
        if version in one.versions and not (flexible and one.tag is not None)
    )


def _field_size_min(one: TableField, version: int, flexible: bool) -> int:
    if one.is_array or one.kind in ("string", "bytes", "records"):
        return 1 if flexible else 2 if one.kind == "string" and not one.is_array else 4
    if one.is_structure:
        return size_min(one.fields, version, flexible)
    return struct.calcsize(">" + CODES[one.kind])


def element_size_min(one: TableField, version: int, flexible: bool) -> int:
    """Return the smallest length in bytes of an array's element."""
    if one.is_structure:
        return size_min(one.fields, version, flexible)
    if one.kind == "string":
        return 1 if flexible else 2
    return struct.calcsize(">" + CODES[one.kind])


def element_charge(one: TableField, version: int, flexible: bool) -> int:
    """Return the highest memory of an array's element beyond six times its smallest length; 0 if it needs less."""
    if one.is_structure:
        cost = _object_bytes(one.fields, version)
    elif one.kind == "string":
        cost = _OBJECT_BYTES["string"]
    else:
        cost = 32 + 8  # the tuple that struct makes
    return max(0, cost + _SLOT_BYTES - 6 * element_size_min(one, version, flexible))


def _object_bytes(fields: list[TableField], version: int) -> int:
    total = 16
    for one in fields:
        total += 8
        if one.is_array:
            total += 56
        elif version not in one.versions:
            pass
        elif one.is_structure:
            total += _object_bytes(one.fields, version)
        else:
            total += _OBJECT_BYTES.get(one.kind, 32)
    return total


class _Decoder(SourceLines):
    """The source of one decoder.

    Its variables: data, pos and size; view, the data without copies; budget, the memory that elements may still need;
    and one for each field, with the number of its structure as suffix.
    """

    def __init__(self, message: TableMessage, version: int) -> None:
        super().__init__()
        self._message = message
        self._version = version
        self._flexible = message.api.is_flexible(version)
        self._codes: list[str] = []
        self._targets: list[str] = []
        self._structures = 0

    def write(self, name: str) -> SourceLines:
        message = self._message
        with self.block(f"def {name}(data: bytes, pos: int) -> {message.name}:"):
            body = len(self.lines)
            arguments = self._structure(message.fields)
            if message is message.api.response:  # of clients, in tests; Kafka ignores bytes behind a request
                with self.block("if pos != size:"):
                    self.add("raise trailing_bytes(size - pos)")
            self.call(f"return {message.name}", arguments)
            if any("budget" in line for line in self.lines[body:]):
                self.lines.insert(body, "    budget = OVERHEAD_BYTES_MAX")
            if any("view" in line for line in self.lines[body:]):
                self.lines.insert(body, "    view = memoryview(data)")
            if any("size" in line for line in self.lines[body:]):
                self.lines.insert(body, "    size = len(data)")
        return self

    def _structure(self, fields: list[TableField]) -> list[str]:
        """Add the reading of a structure; returns the arguments of its class."""
        suffix = str(self._structures or "")
        self._structures += 1
        present = [one for one in fields if self._version in one.versions]
        tagged = [one for one in present if self._flexible and one.tag is not None]
        for one in present:
            if one not in tagged:
                self._field(one, one.name + suffix, suffix)
        if self._flexible:
            self._tags(tagged, suffix)
        self._flush()
        return self._arguments(fields, present, suffix)

    def _arguments(self, fields: list[TableField], present: list[TableField], suffix: str) -> list[str]:
        """Return the arguments of a class for the fields that are present."""
        arguments, positional = [], True
        for one in fields:
            if one not in present:
                positional = False
            else:
                value = one.name + suffix
                arguments.append(value if positional else f"{one.name}={value}")
        return arguments

    # --- fixed fields, read at once ---

    def _pend(self, code: str, target: str) -> None:
        self._codes.append(code)
        self._targets.append(target)

    def _flush(self) -> None:
        if not self._codes:
            return
        codes = "".join(self._codes)
        targets = ", ".join(self._targets)
        self.add(f"{f'({targets},)' if len(self._targets) == 1 else targets} = {self.unpacker(codes)}(data, pos)")
        self.add(f"pos += {struct.calcsize('>' + codes)}")
        self._codes, self._targets = [], []

    # --- single fields ---

    def _field(self, one: TableField, target: str, suffix: str) -> None:
        if one.is_array:
            self._array(one, target, suffix)
        elif one.is_structure:
            arguments = self._structure(one.fields)
            self.call(f"{target} = {one.kind}", arguments)
        elif one.kind in CODES:
            self._pend(CODES[one.kind], target)
        elif self._flexible:
            self._compact(one, target)
        else:
            self._with_length(one, target)

    def _compact(self, one: TableField, target: str) -> None:
        """Add the reading of a string or bytes: short ones in line, others by a function."""
        if one.kind == "records":
            self._flush()
            self.add(f"{target}, pos = compact_records(view, data, pos, size)")
            return
        self._pend("B", "length")
        self._flush()
        decode = ".decode()" if one.kind == "string" else ""
        function = f"{'nullable_' if one.is_nullable(self._version) else ''}compact_{one.kind}"
        with self.block("if 0 < length < 128 and (end := pos + length - 1) <= size:"):
            if one.is_nullable(self._version):
                self.add(f"{target}: {annotation(one)} = data[pos:end]{decode}")
            else:
                self.add(f"{target} = data[pos:end]{decode}")
            self.add("pos = end")
        with self.block("else:"):
            self.add(f"{target}, pos = {function}(data, pos - 1, size)")

    def _with_length(self, one: TableField, target: str) -> None:
        self._pend("h" if one.kind == "string" else "i", "length")
        self._flush()
        value = {"string": "data[pos:end].decode()", "bytes": "data[pos:end]", "records": "view[pos:end]"}
        if one.is_nullable(self._version):
            with self.block("if length < 0:"):
                self.add(f"{target}: {_read_as(one)} = None")
            with self.block("elif (end := pos + length) > size:"):
                self.add("raise malformed_length(length, size - pos)")
            with self.block("else:"):
                self.add(f"{target} = {value[one.kind]}")
                self.add("pos = end")
            return
        with self.block("if length < 0 or (end := pos + length) > size:"):
            self.add("raise malformed_length(length, size - pos)")
        self.add(f"{target} = {value[one.kind]}")
        self.add("pos = end")

    def _array(self, one: TableField, target: str, suffix: str) -> None:
        count = f"n{suffix}_{one.name}"
        if self._flexible:
            self._flush()
            self.add(f"{count}, pos = varint_length(data, pos, size)")
        else:
            self._pend("i", count)
            self._flush()
        smallest = element_size_min(one, self._version, self._flexible)
        charge = element_charge(one, self._version, self._flexible)
        wrong = f"{count} < 0 or " if not one.is_nullable(self._version) else ""
        needed = count if smallest == 1 else f"{count} * {smallest}"
        wrong += f"{needed} > size - pos"
        if charge:
            wrong += f" or (budget := budget - {count} * {charge}) < 0"
        kind = annotation(one).removesuffix(" | None")
        if one.is_nullable(self._version):
            with self.block(f"if {count} < 0:"):
                self.add(f"{target}: {annotation(one)} = None")
            with self.block(f"elif {wrong}:"):
                self.add(f"raise malformed_count({count}, size - pos)")
            with self.block("else:"):
                some = f"{target}_some"
                self._elements(one, some, f"{some}: {kind} =", count)
                self.add(f"{target} = {some}")
            return
        with self.block(f"if {wrong}:"):
            self.add(f"raise malformed_count({count}, size - pos)")
        self._elements(one, target, f"{target}: {kind} =", count)

    def _elements(self, one: TableField, target: str, assign: str, count: str) -> None:
        if one.kind == "int32":
            self.add(f"{assign} int32_array(data, pos, {count})")
            self.add(f"pos += {count} * 4")
            return
        if self._is_fixed(one):
            self._fixed_elements(one, target, assign, count)
            return
        self.add(f"{assign} []")
        self._loop(one, target, count)

    def _is_fixed(self, one: TableField) -> bool:
        """Return if the array's elements all have the same length, unless they have tagged fields."""
        present = [inner for inner in one.fields if self._version in inner.versions]
        return one.is_structure and all(
            (self._flexible and inner.tag is not None) or (inner.kind in CODES and not inner.is_array)
            for inner in present
        )

    def _fixed_elements(self, one: TableField, target: str, assign: str, count: str) -> None:
        """Add the reading of all elements at once, and of single ones in case that one has tagged fields."""
        present = [inner for inner in one.fields if self._version in inner.versions]
        fixed = [inner for inner in present if not (self._flexible and inner.tag is not None)]
        codes = "".join(CODES[inner.kind] for inner in fixed) + ("x" if self._flexible else "")
        size = struct.calcsize(">" + codes)
        arguments = self._arguments(one.fields, fixed, "")
        names = ", ".join(inner.name for inner in fixed) + ("," if len(fixed) == 1 else "")

        def at_once() -> None:
            self.add(f"{assign} [")
            self.add(f"    {one.kind}({', '.join(arguments)})")
            self.add(f"    for {names} in {self.each_unpacker(codes)}(view[pos : pos + {count} * {size}])")
            self.add("]")
            self.add(f"pos += {count} * {size}")

        if not self._flexible:
            at_once()
            return
        with self.block(f"if not any(data[pos + {size - 1} : pos + {count} * {size} : {size}]):"):
            at_once()
        with self.block("else:"):
            self.add(f"{target} = []")
            self._loop(one, target, count)

    def _loop(self, one: TableField, target: str, count: str) -> None:
        with self.block(f"for _ in range({count}):"):
            if one.is_structure:
                arguments = self._structure(one.fields)
                self.call(f"{target}.append({one.kind}", arguments, "))")
            else:
                element = f"{target}_element"
                self._field(TableField(element, one.kind, False, one.versions, None, None, None), element, "")
                self.add(f"{target}.append({element})")

    # --- tagged fields ---

    def _tags(self, tagged: list[TableField], suffix: str) -> None:
        tags = f"tags{suffix}"
        self._pend("B", tags)
        self._flush()
        if not tagged:
            with self.block(f"if {tags}:"):
                self.add("pos, budget = skip_tags(data, pos - 1, size, budget)")
            return
        for one in tagged:
            self.add(f"{one.name}{suffix}: {annotation(one)} = {default_of(one)}")
        with self.block(f"if {tags}:"):
            self.add(f"{tags}, pos = uvarint(data, pos - 1)")
            with self.block(f"if {tags} * 2 > size - pos or (budget := budget - {tags} * TAG_OVERHEAD_BYTES) < 0:"):
                self.add(f"raise malformed_count({tags}, size - pos)")
            with self.block(f"for _ in range({tags}):"):
                self.add("tag, pos = uvarint(data, pos)")
                self.add("length, pos = uvarint(data, pos)")
                behind = f"behind{suffix}"
                with self.block(f"if ({behind} := pos + length) > size:"):
                    self.add("raise malformed_length(length, size - pos)")
                for number, one in enumerate(tagged):
                    with self.block(f"{'if' if number == 0 else 'elif'} tag == {one.tag}:"):
                        self._tagged_field(one, one.name + suffix, suffix)
                        with self.block(f"if pos != {behind}:"):
                            self.add(f"raise malformed_length({behind} - pos, size - pos)")
                with self.block("else:"):
                    self.add(f"pos = {behind}")

    def _tagged_field(self, one: TableField, target: str, suffix: str) -> None:
        start = len(self.lines)
        self._field(one, target, suffix)
        self._flush()
        # the variable has its type already
        self.lines[start:] = [
            line.replace(f" {target}: {annotation(one)} =", f" {target} =") for line in self.lines[start:]
        ]


def _read_as(one: TableField) -> str:
    return "memoryview | None" if one.kind == "records" else annotation(one)
