"""After which others a transaction comes by the values of keys that it touches, and which channel it goes to.

Owns the table of hashes since a plan point, the loads of the channels (`WriteOrder`), and what a channel passes over by
the bytes of a header (`Passing`), since each reads every header. What else decides is `by_writes`'s. Hashes, and the
numbers that stand for transactions, are only looked up and compared, so they stay objects of Python: compiled code
would make a number of each, and an object again. Compiled, see `tranlog.compiled`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from tranlog.change import TableName
from tranlog.ids import Seqno
from tranlog.varint import read_varint
from tranlog.write_item import ROWS, Touches, pass_tables, read_touches

_HEADS_MAX: Final = 4_096


def with_more(touches: Touches, more: Touches) -> Touches:
    """Return what is touched by both together."""
    return touches[0] + more[0], touches[1] + more[1], touches[2] + more[2]


@mypyc_attr(acyclic=True)
class ValueUses:
    """The last transactions with a value of a key: KEY, ROW since it, and by channel REFERENCE since it.

    That is by channel, since one REFERENCE does not wait for another.
    """

    __slots__ = ("key", "references", "row")

    def __init__(self, key: object) -> None:
        self.key: object = key
        self.row: object = None
        self.references: dict[object, object] | None = None


class WriteOrder:
    """The transactions after a plan point, assigned one after the other. Threads: one.

    `lead`: by how many row changes a channel may be ahead of the least loaded and still get what depends on it.
    `entries` and `counted`: how many hashes were noted; transactions that count for whether the next stretch runs
    on channel 0 alone.
    """

    __slots__ = ("_channels", "_last", "_lead", "_loads", "counted", "entries")

    def __init__(self, channels: int, lead: int, counted: int = 0) -> None:
        self.counted = counted
        self.entries = 0
        self._channels = channels
        self._lead = lead
        self._loads: list[int] = [0] * channels
        # By hash the last KEY alone, as seqno * channels + channel, or `ValueUses` of such numbers.
        self._last: dict[object, object] = {}

    def assign(self, seqno: int, changes: int, touches: Touches) -> tuple[int, tuple[tuple[int, Seqno], ...]]:
        """Return the channel of the next transaction, and what it waits for: channel and seqno of others."""
        earlier = self._earlier(touches)
        channel = self._channel_for(earlier)
        self._note(seqno, channel, changes, touches)
        last: dict[int, Seqno] = {}
        for its_seqno, its_channel in earlier:
            if its_channel != channel and its_seqno > last.get(its_channel, -1):
                last[its_channel] = Seqno(its_seqno)
        return channel, tuple(sorted(last.items()))

    def passes(self, seqno: int, changes: int, touches: Touches, channel: int, published: int) -> bool:
        """Assign the next transaction and return True, if it is another's than `channel`'s; else do nothing.

        Nor if it waits for one that `channel` has after seqno `published`.
        """
        earlier = self._earlier(touches)
        owner = self._channel_for(earlier)
        if owner == channel:
            return False
        for its_seqno, its_channel in earlier:
            if its_channel == channel and its_seqno > published:
                return False
        self._note(seqno, owner, changes, touches)
        return True

    def _earlier(self, touches: Touches) -> list[tuple[int, int]]:
        """Return the transactions, seqno and channel, that must come before one with these touches."""
        found: set[object] = set()
        last = self._last
        came_or_gone: Iterable[object] = touches[0]
        kept: Iterable[object] = touches[1]
        referred: Iterable[object] = touches[2]
        for value in came_or_gone:
            there = last.get(value)
            if isinstance(there, ValueUses):
                found.add(there.key)
                found.add(there.row)
                if there.references is not None:
                    found.update(there.references.values())
            else:
                found.add(there)
        for value in kept:
            there = last.get(value)
            if isinstance(there, ValueUses):
                found.add(there.key)
                found.add(there.row)
            else:
                found.add(there)
        for value in referred:
            there = last.get(value)
            found.add(there.key if isinstance(there, ValueUses) else there)
        found.discard(None)
        channels: i64 = self._channels
        earlier: list[tuple[int, int]] = []
        for mark in found:
            assert isinstance(mark, int)
            number: i64 = mark
            earlier.append((number // channels, number % channels))
        return earlier

    def _channel_for(self, earlier: list[tuple[int, int]]) -> int:
        """Return the channel with most of what comes before; the least loaded where that is too far ahead, or none."""
        loads = self._loads
        least = 0
        for channel in range(1, self._channels):
            if loads[channel] < loads[least]:
                least = channel
        if not earlier:
            return least
        counts = [0] * self._channels
        for _, channel in earlier:
            counts[channel] += 1
        most = 0
        for channel in range(1, self._channels):
            more = counts[channel] - counts[most]
            if more > 0 or (more == 0 and loads[channel] < loads[most]):
                most = channel
        return least if loads[most] - loads[least] > self._lead else most

    def _note(self, seqno: int, channel: int, changes: int, touches: Touches) -> None:
        self._loads[channel] += changes
        self.entries += len(touches[0]) + len(touches[1]) + len(touches[2])
        mark: object = seqno * self._channels + channel
        own: object = channel
        last = self._last
        came_or_gone: Iterable[object] = touches[0]
        kept: Iterable[object] = touches[1]
        referred: Iterable[object] = touches[2]
        for value in came_or_gone:
            last[value] = mark
        for value in kept:
            self._uses(value).row = mark
        for value in referred:
            there = self._uses(value)
            if there.references is None:
                there.references = {own: mark}
            else:
                there.references[own] = mark

    def _uses(self, value: object) -> ValueUses:
        there = self._last.get(value)
        if isinstance(there, ValueUses):
            return there
        made = ValueUses(there)
        self._last[value] = made
        return made


class Passing:
    """What one channel may pass over by the bytes of headers, while `order` goes on. Threads: one.

    `every` and `entries`: where plan points are, as `WritesBounds` has them. `alone`: all are channel 0's. Transactions
    of the shards `critical` are not passed. `published`: the channel's position at the target.
    """

    __slots__ = ("_alone", "_channel", "_critical", "_entries", "_every", "_heads", "_order", "published")

    def __init__(
        self, order: WriteOrder, *, channel: int, every: int, entries: int, alone: bool, critical: frozenset[bytes]
    ) -> None:
        self.published = -1
        self._order = order
        self._channel = channel
        self._every = every
        self._entries = entries
        self._alone = alone
        self._critical = critical
        self._heads: dict[tuple[tuple[TableName, ...], bytes], Touches | None] = {}

    def learn(self, tables: tuple[TableName, ...], item: bytes, more: Touches | None = None) -> None:
        """Note that a transaction which does to these tables what this write set says needs not run alone.

        `more`: what it touches beside its write set.
        """
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        _, at = read_varint(item, 1)
        self._heads[tables, item[at : pass_tables(item, at)]] = more

    def passes(self, seqno: int, shard: bytes, tables: tuple[TableName, ...] | None, item: bytes) -> bool:
        """Assign the next transaction and return True, if the channel has nothing to do with it; else do nothing.

        That is: one like it was learned, it is another channel's, no plan point, and waits for nothing that this
        channel has taken since its position.
        """
        order = self._order
        if tables is None or seqno % self._every == 0 or order.entries >= self._entries or shard in self._critical:
            return False
        try:
            if item[0] != ROWS:
                return False
            changes, at = read_varint(item, 1)
            end = pass_tables(item, at)
            head = tables, item[at:end]
            if not changes or head not in self._heads:
                return False
            if self._alone:
                if not self._channel:
                    return False
            else:
                touches, more = read_touches(item, end), self._heads[head]
                if more is not None:
                    touches = with_more(touches, more)
                if not order.passes(seqno, changes, touches, self._channel, self.published):
                    return False
        except (IndexError, ValueError):
            return False
        order.counted += 1
        return True
