"""The log of a remote node: range, headers, cursors, never past what the group has committed.

Owns the choice of the node, the wait for a consistency, and the disk that stands for the node's folder. The hard idea:
a reader needs nothing but the files in a log's folder. So this is the ordinary reader, over a disk whose calls go to a
node. It stays with that node: GTIDs are the same on each node, the files are not.

Source: docs/protocol.md, "Readers"; docs/replication.md.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import secrets
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import msgspec

from tranlog.clock import SYSTEM_CLOCK
from tranlog.disk import DiskLock
from tranlog.errors import ConfigError, HandshakeError, NoNodeError
from tranlog.ids import Gtid, Seqno
from tranlog.log.files.directory import reading
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.reader import LogRange, LogReader
from tranlog.replication.acting.client import (
    FIND_S,
    SCHEME,
    LoopEndedError,
    LoopThread,
    addresses_of,
    check_type,
    not_known,
    packet_ms,
)
from tranlog.replication.acting.connection import Connection, reach
from tranlog.replication.acting.links import pauses
from tranlog.replication.rules import concern
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.packets import (
    NO_GTID,
    RAW_BYTES_MAX,
    STATE_NAMES,
    CommitAnswer,
    DiskAnswer,
    DiskCall,
    NotKnown,
    Packet,
    WaitConsistent,
)
from tranlog.replication.rules.reading import (
    AtLeast,
    Consistency,
    Latest,
    Preference,
    Readable,
    Within,
    choose_node,
    parse_consistency,
    parse_preference,
)
from tranlog.replication.rules.syncup import epochs_differ

if TYPE_CHECKING:
    from tranlog.inotify import FileWatch

ANSWER_S: Final = 30.0
"""A node that gives no answer for so long is not waited for, though it is still there: its disk hangs."""
CONSISTENT_S: Final = 10.0


class NodeDisk:
    """A node's folder as a disk that is only read; paths begin with `root`. Threads: any."""

    def __init__(self, connection: Connection, loop: LoopThread, root: str) -> None:
        self._lost = False
        self._connection = connection
        self._loop = loop
        self._root = root
        self._numbers = itertools.count(1)

    @property
    def lost(self) -> bool:
        """Whether the connection has ended, or is a parent process's. After that every call raises OSError."""
        return self._lost or self._loop.foreign or not self._connection.is_open

    def ask(self, number: int, packet: Packet, within_s: float) -> Packet:
        """Return the answer to the packet with that number. Raises OSError if the connection ended before it."""
        told = None
        if not self.lost:
            try:
                told = self._loop.run(asyncio.wait_for(self._connection.ask(number, packet), within_s))
            except (TimeoutError, LoopEndedError):
                pass
        if told is None:
            self._lost = True
            raise OSError(errno.ECONNRESET, "the connection to the node has ended")
        if isinstance(told, NotKnown):
            raise OSError(errno.ENOSYS, not_known(told))
        return told

    def number(self) -> int:
        """Return the number of the next packet."""
        return next(self._numbers)

    def end(self) -> None:
        """End the connection. Ending twice is harmless."""
        self._lost = True
        self._loop.end(self._connection.close)

    def call(self, call: str, path: str = "", *, file: int = 0, offset: int = 0, size: int = 0) -> DiskAnswer:
        """Run a call at the node. Raises OSError as it does there."""
        number = self.number()
        name = path.removeprefix(self._root).strip("/")
        packet = DiskCall(number=number, call=call, name=name, file=file, offset=offset, size=size)
        told = self.ask(number, packet, ANSWER_S)
        assert isinstance(told, DiskAnswer)
        if told.errno:
            raise OSError(told.errno, told.why or os.strerror(told.errno), path)
        return told

    def open(self, path: str, *, write: bool = False, create: bool = False) -> NodeFile:
        if write or create:
            raise _only_read()
        return NodeFile(self, self.call("open", path))

    def list_dir(self, path: str) -> list[str]:
        return [name for name in self.call("list", path).raw.decode().split("\0") if name]

    def exists(self, path: str) -> bool:
        return bool(self.call("exists", path).value)

    def modified_ms(self, path: str) -> int:
        return self.call("modified", path).value

    def entries_stamp(self, path: str) -> object:
        told = self.call("stamp", path)
        return told.raw if told.value else None

    def boot_id(self) -> str:
        return self.call("boot").raw.decode()

    def free_bytes(self, path: str) -> int | None:
        return None

    def watch(self, path: str) -> FileWatch | None:
        return None

    def is_locked(self, path: str) -> bool:
        raise _only_read()

    def lock(self, path: str) -> DiskLock:
        raise _only_read()

    def make_dir(self, path: str) -> None:
        raise _only_read()

    def unlink(self, path: str) -> None:
        raise _only_read()

    def rename(self, old: str, new: str) -> None:
        raise _only_read()

    def sync_dir(self, path: str) -> None:
        raise _only_read()


class NodeFile:
    """A file in a node's folder."""

    def __init__(self, disk: NodeDisk, opened: DiskAnswer) -> None:
        self._disk = disk
        self._file = opened.value
        self._identity = int(opened.raw)
        self._closed = False

    def pread(self, size: int, offset: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            wanted = min(size, RAW_BYTES_MAX)
            raw = self._disk.call("pread", file=self._file, offset=offset, size=wanted).raw
            parts.append(raw)
            size, offset = size - wanted, offset + wanted
            if len(raw) < wanted:
                break
        return b"".join(parts)

    def size(self) -> int:
        return self._disk.call("size", file=self._file).value

    def linked(self) -> bool:
        return bool(self._disk.call("linked", file=self._file).value)

    def identity(self) -> int:
        return self._identity

    def close(self) -> None:
        if not self._closed and not self._disk.lost:
            self._closed = True
            try:
                self._disk.call("close", file=self._file)
            except OSError:
                pass  # the node closes what is left when the connection ends

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        raise _only_read()

    def write_out(self, size: int, offset: int, *, wait: bool = True) -> None:
        """Nothing is written."""

    def truncate(self, size: int) -> None:
        raise _only_read()

    def sync(self) -> None:
        raise _only_read()


def _only_read() -> OSError:
    return OSError(errno.EROFS, "the log of a node is only read")


class RemoteLog(LogReader):
    """A node's log up to the group's commit point; otherwise as `LogReader`. Made by `open_remote`."""

    def __init__(self, root: str, disk: NodeDisk, node: str, after: Gtid | None, name: str) -> None:
        """For `open_remote` only. `node`: the name of the node."""
        self.node = node
        self.after = after
        """The last transaction that the program has, None where it said none."""
        self._is_held_against = after is None
        self._name = name
        self._node_disk = disk
        super().__init__(root, disk=disk, clock=SYSTEM_CLOCK, checksum=True)
        self._segments.end_early = True

    @property
    def lost(self) -> bool:
        """Whether the connection has ended. After that every call raises LogUnreadableError; open the log again."""
        return self._node_disk.lost

    def begin(self) -> Self:
        """Look at the log for the first time. Raises as `LogReader.open`."""
        return self._begin()

    def range(self) -> LogRange:
        """As `LogReader.range`, up to the commit point. Raises HandshakeError if the log is of another history."""
        found = super().range()
        committed = found.committed_seqno
        if committed < found.first_seqno or committed < 0:
            return LogRange(epoch=found.epoch, scanned=found.scanned)
        after = self.after
        if after is not None and not self._is_held_against and committed >= after.seqno:
            self._is_held_against = True  # a node that was behind at the handshake holds that transaction now
            own = self.header(after.seqno)
            if own is not None and own.gtid != after:
                self._is_held_against = False
                raise HandshakeError(where=self.node, why=epochs_differ(self._name, after, own.gtid))
        return replace(found, last_seqno=committed, durable_seqno=min(found.durable_seqno, committed))

    def cursor(self, *, committed_only: bool = True, hold: str | None = None) -> Cursor:
        """As `LogReader.cursor`; it never passes what is committed. Raises ConfigError for a hold."""
        if hold is not None:
            raise ConfigError(option="hold", value=hold, why="a node keeps none for who only reads")
        return super().cursor(committed_only=True)

    def await_seqno(self, seqno: Seqno, timeout_s: float) -> bool:
        """Wait until a transaction is committed at this node; return False if it is not in time."""
        return self._wait(seqno, True, timeout_s) >= seqno

    def close(self) -> None:
        """As `LogReader.close`, and end the connection."""
        try:
            super().close()
        finally:
            self._node_disk.end()


def open_remote(
    url: str,
    *,
    prefer: str = "nearest",
    prefer_s: float = 0.0,
    tags: Sequence[Mapping[str, str]] = ({},),
    consistency: str = "none",
    timeout: float = CONSISTENT_S,
    after: Gtid | None = None,
    after_event: str = "",
    name: str = "",
    tls: ssl.SSLContext | None = None,
    via: Mapping[str, str] | None = None,
    find_s: float = FIND_S,
) -> RemoteLog:
    """Open the log of a node of a group for reading. `url`: `thl://HOST:PORT,HOST:PORT`, some of the group's nodes.

    `prefer`: primary, primaryPreferred, replica, replicaPreferred or nearest. `prefer_s`: how many seconds to look for
    the preferred role before another one is taken. `tags`: sets of tags; the first set that any node has is used.
    `consistency`: none, `at least GTID(1, 15)`, `within 500 ms` or `latest`, which only the primary can give; it is
    waited for up to `timeout` seconds. `after`: the last transaction that the program has; the node refuses if its log
    has another one in that place, or has purged the next one. `after_event`: its event id instead, which the node looks
    up among its newest 50,000; the log's `after` is its GTID then. `name`: the reader's name in such messages.
    `find_s`: how long to look for a node.
    Raises NoNodeError, HandshakeError, ConfigError, TypeError, ValueError; and as `LogReader.open`.
    """
    for option, value in (("prefer", prefer), ("consistency", consistency), ("after_event", after_event)):
        check_type(option, value, str)
    for option, seconds in (("prefer_s", prefer_s), ("timeout", timeout), ("find_s", find_s)):
        packet_ms(option, seconds)
    if after is not None:
        check_type("after", after, Gtid)
    if tls is not None:
        check_type("tls", tls, ssl.SSLContext)
    wish = parse_consistency(consistency)
    preference = Preference.PRIMARY if isinstance(wish, Latest) else parse_preference(prefer)
    name = name or socket.gethostname()
    if after is not None and after_event:
        raise ConfigError(option="after_event", value=after_event, why="after says already what the program has")
    choice = _Choice(url, preference, _sets_of(tags), tls, via or {}, name)
    loop = LoopThread()
    end = loop.close
    try:
        connection, node = loop.run(choice.find(find_s, prefer_s))
        if after is not None or after_event:
            connection, after = loop.run(choice.hold_against(connection, after, after_event))
        disk = NodeDisk(connection, loop, root := f"{SCHEME}{node}")
        end = disk.end
        _await(disk, node, wish, consistency, timeout)
        with reading(root):
            return RemoteLog(root, disk, node, after, name).begin()
    except BaseException:
        end()
        raise


def _sets_of(tags: object) -> list[dict[str, str]]:
    """Return the sets of tags, a copy. Raises TypeError for what no node's tags could fit."""
    found: list[dict[str, str]] = []
    for one in tags if isinstance(tags, Sequence) and not isinstance(tags, str) else (None,):
        if not isinstance(one, Mapping) or not all(isinstance(text, str) for pair in one.items() for text in pair):
            raise TypeError(f"tags are a list of sets of texts, such as [{{'site': 'x'}}, {{}}], not {tags!r}")
        found.append(dict(one))
    return found


def _await(disk: NodeDisk, name: str, wish: Consistency, told: str, timeout: float) -> None:
    """Return when the node is as consistent as was wished. Raises NoNodeError."""
    if wish is None:
        return
    number, timeout_ms = disk.number(), max(round(timeout * 1000), 1)
    packet = WaitConsistent(number=number, kind="latest", timeout_ms=timeout_ms)
    if isinstance(wish, AtLeast):
        packet = WaitConsistent(number=number, kind="at_least", gtid=wish.gtid, timeout_ms=timeout_ms)
    elif isinstance(wish, Within):
        packet = WaitConsistent(number=number, kind="within", lag_ms=wish.lag_ms, timeout_ms=timeout_ms)
    try:
        answer = disk.ask(number, packet, timeout + ANSWER_S)
    except OSError as exc:
        raise NoNodeError(where=name, why=str(exc.strerror)) from exc
    assert isinstance(answer, CommitAnswer)
    if answer.kind != concern.SATISFIED:
        why = "it is not primary any more" if answer.kind == concern.NOT_PRIMARY else answer.text
        if answer.kind == concern.ROLLED_BACK:
            why = f"the transaction of `{told}` was rolled back: the group's log holds another one there, or none"
        why = why or f"`{told}` was not so within {timeout:g} s; it has committed up to {answer.gtid}"
        raise NoNodeError(where=name, why=why)


class _Choice:
    """Which node is read."""

    def __init__(
        self,
        url: str,
        preference: Preference,
        tags: Sequence[dict[str, str]],
        tls: ssl.SSLContext | None,
        via: Mapping[str, str],
        name: str,
    ) -> None:
        self._url = url
        self._name = name
        self._addresses = addresses_of(url)
        self._preference = preference
        self._tags = tags
        self._tls = tls
        self._via = via
        self._own = NodeId(secrets.token_hex(8))

    async def find(self, find_s: float, prefer_s: float) -> tuple[Connection, str]:
        """Return a connection to the node, and its name. Raises NoNodeError, ConfigError."""
        loop = asyncio.get_running_loop()
        began, waits = loop.time(), pauses()
        alone = began if self._preference.alone is self._preference else began + prefer_s
        until = max(began + find_s, alone)
        while True:
            troubles: list[str] = []
            gone: set[str] = set()
            is_alone = loop.time() < alone
            wished = self._preference.alone if is_alone else self._preference
            for address in self._addresses:
                found = None if address in gone else await self._through(address, wished, troubles, gone)
                if found is not None:
                    return found
            left = (alone if is_alone else until) - loop.time()
            if not is_alone and left <= 0:
                tags = "" if not any(self._tags) else f", with tags {msgspec.json.encode(self._tags).decode()}"
                why = "; ".join([f"{self._preference.value} was asked for{tags}", *dict.fromkeys(troubles)])
                raise NoNodeError(where=self._url, why=why)
            await asyncio.sleep(max(min(next(waits), left), 0.0))

    async def _through(
        self, address: str, wished: Preference, troubles: list[str], gone: set[str]
    ) -> tuple[Connection, str] | None:
        """Ask the node at an address who is in the group, and look at each of them.

        `gone`: the addresses that gave no answer in this round. One that is frozen costs seconds, and is tried once.
        """
        try:
            asked = await self._reach(address)
            told = await asked.who()
            await asked.close()
        except (OSError, HandshakeError) as exc:
            troubles.append(f"{address}: {exc}")
            gone.add(address)
            return None
        members = () if told is None else told.config.members
        addresses = [self._via.get(one.name, one.address) for one in members]
        met = await asyncio.gather(*(self._meet(one, troubles, gone) for one in addresses))
        reached: dict[NodeId, tuple[Connection, str]] = {}
        readable, states = [], []
        for member, found in zip(members, met, strict=True):
            states.append(f"{member.name} {'was not reached' if found is None else f'is {STATE_NAMES[found[1]]}'}")
            if found is not None:
                connection, state, ping_ms = found
                reached[member.node] = connection, member.name
                tags = dict(member.tags)
                readable.append(Readable(member.node, state, ping_ms=ping_ms, hidden=member.hidden, tags=tags))
        chosen = reached.pop(choose_node(readable, wished, self._tags), None)
        for connection, _ in reached.values():
            await connection.close()
        if chosen is None:
            troubles.append(f"no node fits: {', '.join(states)}" if states else f"{address} is in no group")
        return chosen

    async def _meet(self, address: str, troubles: list[str], gone: set[str]) -> tuple[Connection, int, int] | None:
        """Return a connection to a node, its state, and how far away it is in ms."""
        if address in gone:
            return None
        try:
            connection = await self._reach(address)
            before = asyncio.get_running_loop().time()
            await connection.who()
            far = asyncio.get_running_loop().time() - before
            return connection, (await connection.hello).state, round(far * 1000)
        except (OSError, HandshakeError, ConfigError) as exc:
            troubles.append(f"{address}: {exc}")
            gone.add(address)
            return None

    async def hold_against(self, connection: Connection, last: Gtid | None, event: str) -> tuple[Connection, Gtid]:
        """Connect again to a node that was found, which holds its log against what the reader has; return that, too.

        Raises HandshakeError, OSError.
        """
        assert connection.wire is not None
        address = connection.wire.where
        await connection.close()
        held = await self._reach(address, last, event)
        found = (await held.welcome).after if last is None else last
        if found == NO_GTID and event:
            await held.close()
            raise HandshakeError(where=address, why="the node cannot look up event ids: update it")
        return held, found

    async def _reach(self, address: str, last: Gtid | None = None, event: str = "") -> Connection:
        own, tls = self._own, self._tls
        found = await reach(address, name=self._name, own=own, purpose="read", tls=tls, last=last, from_event=event)
        found.watch(tls)
        return found
