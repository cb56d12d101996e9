"""After which others a transaction comes by the values of keys that it touches, and which channel it goes to.

Owns the table of hashes since a plan point, the loads of the channels (`WriteOrder`), and what a channel passes over by
the bytes of a header (`Passing`), since each reads every header. What else decides is `by_writes`'s. Since that is all
that a channel does for most transactions, hashes and transactions are numbers in flat tables here, looked up without an
object of Python for any of them. Compiled, see `tranlog.compiled`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from librt.strings import read_i32_be
from librt.vecs import append, vec
from mypy_extensions import i64

from tranlog.change import TableName
from tranlog.ids import Seqno
from tranlog.varint import read_varint
from tranlog.write_item import NUMBER_BYTES, ROWS, Touches, pass_tables

_HEADS_MAX: Final = 4_096
_SLOTS_FIRST: Final = 1_024
_TIE_PART: Final = 32
"""Of two channels with as much of what a transaction waits for, the one with the last of it gets it, if it is ahead of
the other by no more than such a part of what that one has had, or of `lead` where that is less."""
_LATE_PART: Final = 4
"""A channel is not too far ahead where it has done what it has by no more than such a part of `lead` after all that the
transaction waits for: another one would wait as long."""
_GROUP: Final = 5_000
"""Row changes of a full group of transactions, for the estimate."""
_SLOT: Final = 4
"""Numbers of a slot: the hash, plus one, and above it how often it was touched; the last transaction with it as a KEY;
the last with it as a ROW since; where the last with it as a REFERENCE since begin, one of each channel. A transaction
is its place in `_owners` plus one; 0 is none, in all of them. The first places are of no transaction but each
channel's: they stand for what a channel had before the plan point, and nothing waits for them."""
_HASH: Final = (1 << 33) - 1
"""What of the first number of a slot is the hash, plus one."""
_TOUCHED: Final = 1 << 33


Homes: TypeAlias = tuple[tuple[int, int], ...]
"""Hashes that are touched often, and the channel on which each was touched last."""
Owned: TypeAlias = tuple[int, tuple[tuple[int, Seqno], ...]]
"""A channel, and after what of others it applies a transaction: channel and seqno."""


def with_more(touches: Touches, more: Touches) -> Touches:
    """Return what is touched by both together."""
    return touches[0] + more[0], touches[1] + more[1], touches[2] + more[2]


class Estimate:
    """How long the channels take for what they were assigned, if a row change takes one unit of time. Threads: one.

    `commit`: how many units a commit takes; 0: it is never crowded. A channel commits its group of transactions when
    that is full, when another channel waits for something in it, and before it waits itself. `taken`: how many
    transactions there were. `crowded`: one channel is as fast as all were for the last two times `judged` of them; for
    the first of a plan it is often, until what belongs together has come to one channel.
    """

    __slots__ = (
        "_at",
        "_bad",
        "_before",
        "_changes",
        "_commit",
        "_judged",
        "_last",
        "_open",
        "_sent",
        "_sent_at",
        "crowded",
        "taken",
    )

    def __init__(self, channels: int, *, commit: int, judged: int) -> None:
        none = [0] * channels
        self.taken = 0
        self.crowded = False
        self._judged = judged
        self._bad = 0
        self._before = 0, 0
        self._commit: i64 = commit
        self._changes: i64 = 0
        # By channel: when it has done what it has; the row changes of its group; its last transaction; the last one
        # that it has committed, and when.
        self._at = vec[i64](none)
        self._open = vec[i64](none)
        self._last = vec[i64](none)
        self._sent = vec[i64]([channels] * channels)  # nothing waits for the first places
        self._sent_at = vec[i64](none)

    def take(self, channel: i64, mark: i64, changes: i64, latest: vec[i64]) -> None:
        """Note that a channel has the next transaction; `latest` has by channel the last one that comes before it."""
        ready: i64 = 0
        for other in range(len(latest)):
            if other != channel and latest[other] > len(latest):
                if latest[other] > self._sent[other]:
                    self._send(other)
                ready = max(ready, self._sent_at[other])
        if ready > self._at[channel]:
            if self._open[channel]:
                self._send(channel)
            self._at[channel] = max(ready, self._at[channel])
        self._changes += changes
        self._at[channel] += changes
        self._open[channel] += changes
        self._last[channel] = mark
        if self._open[channel] >= _GROUP:
            self._send(channel)
        self.taken += 1
        if self.taken % self._judged == 0 and len(latest) > 1 and self._commit > 0:
            self._judge()

    def _judge(self) -> None:
        one, longest = self._times()
        was_one, was_longest = self._before
        self._bad = self._bad + 1 if one - was_one <= longest - was_longest else 0
        self._before = one, longest
        self.crowded = self._bad > 1

    def _send(self, channel: i64) -> None:
        self._at[channel] += self._commit
        self._open[channel] = 0
        self._sent[channel] = self._last[channel]
        self._sent_at[channel] = self._at[channel]

    def gain(self) -> int:
        """Return how fast the channels are together, in percent of one channel that has all of it."""
        one, longest = self._times()
        return one * 100 // max(1, longest)

    def _times(self) -> tuple[int, int]:
        """Return how long one channel takes for all of it, and the one of these that takes longest for what it has."""
        longest: i64 = 0
        for at in self._at:
            longest = max(longest, at)
        return self._changes + self._changes // _GROUP * self._commit, longest


class WriteOrder:
    """The transactions after a plan point, assigned one after the other. Threads: one.

    `lead`: by how many row changes a channel may be ahead of the least loaded and still get what depends on it.
    `estimate`: of how long that takes. `entries` and `counted`: how many hashes were noted; transactions that count for
    whether many were serial. `homes`: where values are that were touched before, which counts as one more transaction
    that comes before, but nothing waits for it.
    """

    __slots__ = (
        "_counts",
        "_done",
        "_ends",
        "_first",
        "_keys",
        "_latest",
        "_lead",
        "_loads",
        "_look",
        "_owners",
        "_ready",
        "_references",
        "_rows",
        "_seen",
        "_slots",
        "_used",
        "_values",
        "counted",
        "entries",
        "estimate",
    )

    def __init__(self, channels: int, lead: int, estimate: Estimate, counted: int = 0, homes: Homes = ()) -> None:
        self.counted = counted
        self.entries = 0
        self.estimate = estimate
        self._lead: i64 = lead
        none = [0] * channels
        self._loads = vec[i64](none)
        self._slots = vec[i64]([0] * (_SLOTS_FIRST * _SLOT))
        self._used: i64 = 0
        self._references = vec[i64]([0])
        self._first: i64 = 0
        self._owners = vec[i64](range(channels))
        # If a row change took one unit of time: when each transaction ends, and when a channel has done what it has.
        self._ends = vec[i64](none)
        self._done = vec[i64](none)
        # Of the transaction at hand: its hashes, KEYs and then ROWs in front; by channel how many come before it, and
        # the place of the last of these, plus one; when all of these end. Of each transaction at which look it was
        # counted last.
        self._values = vec[i64]()
        self._keys: i64 = 0
        self._rows: i64 = 0
        self._counts = vec[i64](none)
        self._latest = vec[i64](none)
        self._ready: i64 = 0
        self._seen = vec[i64](none)
        self._look: i64 = 0
        for value, channel in homes:
            slot = self._new_slot(value)
            self._slots[slot] = value + 1
            self._slots[slot + 2] = channel + 1

    def homes(self, most: int, touches: int) -> Homes:
        """Return where the values are that are touched most, and no less than so often."""
        found: list[tuple[int, int, int]] = []
        slots = self._slots
        at: i64 = 0
        while at < len(slots):
            count = slots[at] // _TOUCHED
            mark = max(slots[at + 1], slots[at + 2])
            if count >= touches and mark:
                found.append((-count, (slots[at] & _HASH) - 1, self._owners[mark - 1]))
            at += _SLOT
        found.sort()
        return tuple([(value, channel) for _, value, channel in found[:most]])

    def assign(self, seqno: int, changes: int, touches: Touches) -> Owned:
        """Return the channel of the next transaction, and what it waits for: channel and seqno of others."""
        self._take(touches)
        return self._assign(seqno, changes)

    def assign_read(self, seqno: int, changes: int, item: bytes, at: int, more: Touches | None) -> Owned:
        """Do as `assign`, for hashes that begin at `at` of a write set; raises as `passes`."""
        self._read(item, at, more)
        return self._assign(seqno, changes)

    def _assign(self, seqno: int, changes: int) -> Owned:
        place = self._place(seqno)
        self._look_back()
        channel = self._channel()
        waits: list[tuple[int, Seqno]] = []
        latest, first = self._latest, self._first
        for other in range(len(self._loads)):
            if latest[other] > len(latest) and other != channel:
                waits.append((other, Seqno(first + latest[other] - 1)))
        self._note(place, channel, changes)
        return channel, tuple(waits)

    def passes(
        self, seqno: int, changes: int, item: bytes, at: int, more: Touches | None, whose: int, published: int
    ) -> bool:
        """Assign the next transaction and return True, if it is another's than channel `whose`'s; else do nothing.

        Nor if it waits for one that this channel has after seqno `published`. Its hashes begin at `at` of its write
        set; `more` is what it touches beside them. Raises IndexError, ValueError for a write set that ends before.
        """
        self._read(item, at, more)
        place = self._place(seqno)
        self._look_back()
        channel = self._channel()
        if channel == whose:
            return False
        if whose < len(self._loads) and self._latest[whose] and self._first + self._latest[whose] - 1 > published:
            return False
        self._note(place, channel, changes)
        return True

    def _take(self, touches: Touches) -> None:
        values = vec[i64]()
        for hashes in touches:
            for value in hashes:
                values = append(values, value)
        self._values = values
        self._keys, self._rows = len(touches[0]), len(touches[1])

    def _read(self, item: bytes, at: int, more: Touches | None) -> None:
        values = vec[i64]()
        counts: list[int] = []
        size: i64 = len(item)
        for use in range(3):
            count, at = read_varint(item, at)
            place: i64 = at
            end: i64 = place + count * NUMBER_BYTES
            if end > size:
                raise ValueError(f"{count} numbers announced in a write set of {size} bytes")
            while place < end:
                values = append(values, i64(read_i32_be(item, place)) & 0xFFFFFFFF)
                place += NUMBER_BYTES
            at = end
            if more is not None:
                for value in more[use]:
                    values = append(values, value)
                count += len(more[use])
            counts.append(count)
        self._values = values
        self._keys, self._rows = counts[0], counts[1]

    def _place(self, seqno: i64) -> i64:
        """Return the place of a transaction, which has one in `_owners`, `_ends` and `_seen` from now on."""
        if len(self._owners) == len(self._loads):
            self._first = seqno - len(self._loads)
        place = seqno - self._first
        owners, ends, seen = self._owners, self._ends, self._seen
        while len(owners) <= place:
            owners, ends, seen = append(owners, 0), append(ends, 0), append(seen, 0)
        self._owners, self._ends, self._seen = owners, ends, seen
        return place

    def _look_back(self) -> None:
        """Count by channel the transactions that must come before the one at hand."""
        self._look += 1
        self._ready = 0
        for channel in range(len(self._loads)):
            self._counts[channel] = 0
            self._latest[channel] = 0
        values, slots = self._values, self._slots
        kept, referred = self._keys, self._keys + self._rows
        for at in range(len(values)):
            slot = _slot_of(slots, values[at])
            if not slots[slot]:
                continue
            self._count(slots[slot + 1])
            if at < referred:
                self._count(slots[slot + 2])
            if at < kept and slots[slot + 3]:
                begin = slots[slot + 3]
                for channel in range(len(self._loads)):
                    self._count(self._references[begin + channel])

    def _count(self, mark: i64) -> None:
        if not mark or self._seen[mark - 1] == self._look:
            return
        self._seen[mark - 1] = self._look
        channel = self._owners[mark - 1]
        self._counts[channel] += 1
        if mark > self._latest[channel]:
            self._latest[channel] = mark
        if self._ends[mark - 1] > self._ready:
            self._ready = self._ends[mark - 1]

    def _channel(self) -> i64:
        """Return the channel with most of what comes before; the least loaded where that is too far ahead, or none.

        Of several with most: the one with the last of it, so that groups of transactions are few, unless it is ahead.
        Too far ahead is none where what comes before ends so late that another channel would have to wait as long.
        """
        loads, counts, latest = self._loads, self._counts, self._latest
        least: i64 = 0
        most: i64 = 0
        last: i64 = 0
        for channel in range(1, len(loads)):
            if loads[channel] < loads[least]:
                least = channel
            more = counts[channel] - counts[most]
            if more > 0 or (more == 0 and loads[channel] < loads[most]):
                most = channel
            more = counts[channel] - counts[last]
            if more > 0 or (more == 0 and latest[channel] > latest[last]):
                last = channel
        if loads[last] - loads[most] <= min(self._lead, loads[most]) // _TIE_PART:
            most = last
        if not counts[most]:
            return least
        if loads[most] - loads[least] <= self._lead or self._done[most] - self._ready <= self._lead // _LATE_PART:
            return most
        return least

    def _note(self, place: i64, channel: i64, changes: i64) -> None:
        self.estimate.take(channel, place + 1, changes, self._latest)
        self._loads[channel] += changes
        self._owners[place] = channel
        end = max(self._done[channel], self._ready) + changes
        self._done[channel] = self._ends[place] = end
        values = self._values
        self.entries += len(values)
        mark: i64 = place + 1
        kept, referred = self._keys, self._keys + self._rows
        for at in range(len(values)):
            slots = self._slots
            slot = _slot_of(slots, values[at])
            if not slots[slot]:
                slot = self._new_slot(values[at])
                slots = self._slots
                slots[slot] = values[at] + 1
            slots[slot] += _TOUCHED
            if at < kept:
                slots[slot + 1] = mark
                slots[slot + 2] = 0
                slots[slot + 3] = 0
            elif at < referred:
                slots[slot + 2] = mark
            else:
                begin = slots[slot + 3]
                if not begin:
                    references = self._references
                    begin = len(references)
                    for _ in range(len(self._loads)):
                        references = append(references, 0)
                    self._references = references
                    slots[slot + 3] = begin
                self._references[begin + channel] = mark

    def _new_slot(self, value: i64) -> i64:
        """Return where the slot of a hash begins that has none yet."""
        if self._used * 2 * _SLOT >= len(self._slots):
            self._grow()
        self._used += 1
        return _slot_of(self._slots, value)

    def _grow(self) -> None:
        old = self._slots
        slots = vec[i64]([0] * (2 * len(old)))
        at: i64 = 0
        while at < len(old):
            if old[at]:
                slot = _slot_of(slots, (old[at] & _HASH) - 1)
                for part in range(_SLOT):
                    slots[slot + part] = old[at + part]
            at += _SLOT
        self._slots = slots


def _slot_of(slots: vec[i64], value: i64) -> i64:
    """Return where the slot of a hash begins: it has it, or is empty."""
    size: i64 = len(slots)
    at: i64 = value * _SLOT & (size - 1)
    while slots[at] and slots[at] & _HASH != value + 1:
        at = at + _SLOT & (size - 1)
    return at


class Passing:
    """What one channel may pass over by the bytes of headers, while `order` goes on. Threads: one.

    `every` and `entries`: where plan points are, as `WritesBounds` has them. `alone`: all are channel 0's, whatever
    `order` says. Transactions of the shards `critical` are not passed. `published`: the channel's position at the
    target.
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
        try:
            changes, end, more = self._read(seqno, shard, tables, item)
            if not changes or (self._alone and not self._channel):
                return False
            if self._alone:
                order.assign_read(seqno, changes, item, end, more)
            elif not order.passes(seqno, changes, item, end, more, self._channel, self.published):
                return False
        except (IndexError, ValueError):
            return False
        order.counted += 1
        return True

    def assign(self, seqno: int, shard: bytes, tables: tuple[TableName, ...] | None, item: bytes) -> Owned | None:
        """Assign the next transaction, if one like it was learned and no plan begins; else do nothing."""
        order = self._order
        try:
            changes, end, more = self._read(seqno, shard, tables, item)
            if not changes:
                return None
            owned = order.assign_read(seqno, changes, item, end, more)
        except (IndexError, ValueError):
            return None
        order.counted += 1
        return (0, ()) if self._alone else owned

    def _read(
        self, seqno: int, shard: bytes, tables: tuple[TableName, ...] | None, item: bytes
    ) -> tuple[int, int, Touches | None]:
        """Return how many row changes one has whose like was learned, where its hashes begin, what it touches more.

        Without changes: it was not, or it is perhaps a plan point. Raises IndexError, ValueError.
        """
        if (
            tables is None
            or seqno % self._every == 0
            or self._order.entries >= self._entries
            or (self._order.estimate.crowded and not self._alone)
            or shard in self._critical
        ):
            return 0, 0, None
        if item[0] != ROWS:
            return 0, 0, None
        changes, at = read_varint(item, 1)
        end = pass_tables(item, at)
        head = tables, item[at:end]
        return (changes, end, self._heads[head]) if head in self._heads else (0, 0, None)
