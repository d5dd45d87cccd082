"""Describe constructs to the compiled module, which encodes and decodes common messages.

A `Layout` of the compiled module is to it what generated code is to Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from construct import Construct

from ..primitives import ArrayOf, Blob, Body, CompactLength, NullableBody, Text, UuidBytes
from .source import struct_code

if TYPE_CHECKING:
    from .._fast import FieldType, Layout

#: The numbers of types in the compiled module.
_KINDS = {"?": 1, "b": 2, "h": 3, "H": 4, "l": 5, "i": 5, "q": 6, "d": 7}
_UUID, _TEXT, _BLOB, _ARRAY, _STRUCT = 8, 9, 10, 11, 12


def layout_of(body: Body, layout: type[Layout]) -> Layout:
    """Return the layout of a message in a version."""
    on_wire = {name for name, _subcon in body.fields}
    tagged = () if body.tags is None else [name for name, *_ in body.tags.fields.values()]
    defaults = {
        name: spec.default for name, spec in body.message.fields.items() if name not in on_wire
    }
    unchecked = {name for name in defaults if name not in body.absent and name not in tagged}
    others = [*defaults.items(), ("unknown_tagged_fields", ())]
    fields = [(name, _type_of(subcon, layout)) for name, subcon in body.fields]
    return layout(body.message, fields, others, unchecked, body.tags is not None)


def _type_of(subcon: Construct, layout: type[Layout]) -> FieldType:
    if (code := struct_code(subcon)) is not None:
        return _KINDS[code], False, False, None
    if subcon is UuidBytes:
        return _UUID, False, False, None
    if isinstance(subcon, NullableBody):
        return _STRUCT, True, False, layout_of(subcon.subcon, layout)
    if isinstance(subcon, Body):
        return _STRUCT, False, False, layout_of(subcon, layout)
    inner: Any = None
    kind = _TEXT if isinstance(subcon, Text) else _BLOB
    if isinstance(subcon, ArrayOf):
        kind, inner = _ARRAY, _type_of(subcon.element, layout)
    assert isinstance(subcon, Text | Blob | ArrayOf), subcon
    return kind, subcon.nullable, subcon.length is CompactLength, inner
