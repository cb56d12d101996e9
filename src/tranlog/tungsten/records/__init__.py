"""Bytes of the ancestor's codec: records (`codec`), the serialized event (`payload`, `values`), and what both hold.

`cells` turns one value into the other codec's; `event.proto` is the payload's definition. Pure.
"""
