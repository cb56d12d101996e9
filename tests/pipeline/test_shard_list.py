"""conformance/tungsten.md A5, ShardListPartitioner: the file `shard.list`."""

from __future__ import annotations

import pytest

from tranlog.errors import ConfigError
from tranlog.pipeline.rules.channels import AssignmentRule, PlanOptions
from tranlog.pipeline.rules.shard_list import parse_shard_list

ALL = """
# comment
! another
shop = 1
a=b=2
ledger=0
(*)=3
(critical)=ledger, audit
(hash-method)=string-hash
"""


def test_every_kind_of_line() -> None:
    """`shard=partition`, `(*)`, `(critical)`, `(hash-method)`."""
    assert parse_shard_list(ALL, file="shard.list") == PlanOptions(
        channels={"shop": 1, "a=b": 2}, default=3, serial=("audit", "ledger"), assignment=AssignmentRule.HASH
    )


@pytest.mark.parametrize("text", ["", "(*)=-1\n(hash-method)=round-robin"])
def test_the_defaults(text: str) -> None:
    """ "-1/absent: hash-method", "default round-robin", which is by shard and stored."""
    assert parse_shard_list(text, file="f") == PlanOptions(assignment=AssignmentRule.RECORDED)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a=1\n\nb", "f line 3 = 'b': a line reads shard=channel"),
        ("=1", "a line reads shard=channel"),
        ("a=-1", "a channel is a number from 0"),
        ("(*)=-2", "a channel is a number from 0"),
        ("a=one", "a channel is a number from 0"),
        ("a=1\na=2", "a has a line already"),
        ("(hash-method)=by-transaction", "must be one of string-hash, round-robin"),
    ],
)
def test_a_wrong_line_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as found:
        parse_shard_list(text, file="f")
    assert told in str(found.value)
