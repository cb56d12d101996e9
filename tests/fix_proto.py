"""The shipped `.proto` files as classes of a real protobuf library: the oracle of both payload codecs.

Read by a few lines of our own, since the library's compiler is a program of its own. What these files use of the
language is messages, enumerations and fields, one a line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import tranlog

NATIVE = Path(tranlog.__file__).with_name("event.proto")
TUNGSTEN = Path(tranlog.__file__).with_name("tungsten") / "records" / "event.proto"
_KINDS = descriptor_pb2.FieldDescriptorProto
_LABELS: dict[str, Any] = {
    "optional": _KINDS.LABEL_OPTIONAL,
    "required": _KINDS.LABEL_REQUIRED,
    "repeated": _KINDS.LABEL_REPEATED,
}


def messages_of(path: Path, *, more: str = "") -> dict[str, Any]:
    """Return the class of each message by its name; `more` are fields for the last message."""
    file = descriptor_pb2.FileDescriptorProto(name=path.name, package="oracle", syntax="proto2")
    text = re.sub(r"//[^\n]*", "", path.read_text())
    text = re.sub(r"\}\s*\Z", more + "}", text)
    enums: dict[str, str] = {}
    message: Any = None
    enum: Any = None
    names = set(re.findall(r"message (\w+)", text))
    for line in text.split("\n"):
        words = line.replace(";", " ").replace("=", " ").split()
        match words:
            case ["message", name, "{"]:
                message = file.message_type.add(name=name)
            case ["enum", name, "{"]:
                enum = message.enum_type.add(name=name)
                enums[name] = f".oracle.{message.name}.{name}"
            case ["}"]:
                enum = None
            case [label, kind, name, number] if label in _LABELS:
                field = message.field.add(name=name, number=int(number), label=_LABELS[label])
                if kind in names:
                    field.type, field.type_name = _KINDS.TYPE_MESSAGE, f".oracle.{kind}"
                elif kind in enums:
                    field.type, field.type_name = _KINDS.TYPE_ENUM, enums[kind]
                else:
                    field.type = getattr(_KINDS, f"TYPE_{kind.upper()}")
            case [name, number] if enum is not None:
                enum.value.add(name=name, number=int(number))
            case [] | ["syntax", _] | ["package", _]:
                pass
            case _:
                raise AssertionError(f"{path}: {line!r} is of no form that is read here")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"oracle.{name}")) for name in names}
