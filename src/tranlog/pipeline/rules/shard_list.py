"""The ancestor's file `shard.list`: which shards go to which channel, and which run alone.

Owns the file's form; its contents are options of a plan. Pure. Its lines are `shard=channel`, and in brackets
`(*)=N`, the channel of every shard without a line (-1: as `(hash-method)` says), `(critical)=a,b`, the shards that run
alone, and `(hash-method)=string-hash` or `round-robin`. The ancestor's string hash is Java's, ours is CRC-32: the
channel differs, what it is for does not. Round robin is by shard, kept in `tranlog_shard`.
"""

from __future__ import annotations

from typing import Final

from tranlog.errors import ConfigError
from tranlog.pipeline.rules.channels import AssignmentRule, PlanOptions

_METHODS: Final = {"string-hash": AssignmentRule.HASH, "round-robin": AssignmentRule.RECORDED}


def parse_shard_list(text: str, *, file: str) -> PlanOptions:
    """Read the text of a `shard.list`; `file` is its name for messages. Raises ConfigError, naming the line.

    A shard without a line has its channel by the assignment rule, unless there is a default.
    """
    mapping: dict[str, int] = {}
    default: int | None = None
    critical: tuple[str, ...] = ()
    rule = AssignmentRule.RECORDED
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        where = f"{file} line {number}"
        name, separator, value = (part.strip() for part in line.rpartition("="))
        if not separator or not name:
            raise ConfigError(option=where, value=line, why="a line reads shard=channel")
        if name in seen:
            raise ConfigError(option=where, value=line, why=f"{name} has a line already")
        seen.add(name)
        match name:
            case "(critical)":
                critical = tuple(sorted({one.strip() for one in value.split(",")} - {""}))
            case "(hash-method)":
                if value not in _METHODS:
                    raise ConfigError(option=where, value=value, why=f"must be one of {', '.join(_METHODS)}")
                rule = _METHODS[value]
            case _:
                if not value.lstrip("-").isdecimal() or int(value) < (-1 if name == "(*)" else 0):
                    raise ConfigError(option=where, value=value, why="a channel is a number from 0")
                if name == "(*)":
                    default = None if int(value) < 0 else int(value)
                else:
                    mapping[name] = int(value)
    # A critical shard runs alone, whatever channel its line names.
    mapping = {shard: channel for shard, channel in mapping.items() if shard not in critical}
    return PlanOptions(channels=mapping, default=default, serial=critical, assignment=rule)
