"""Restore: the log of another node is fetched beside the node's own log, verified, and then replaces it.

Owns the files of a restore on the disk, both ends of their transfer, and their order. The own log stays as it is, and
is read, until every file of the other one is there, durable, with the right checksum. Then a marker, with which no log
opens, stands while one replaces the other. The hard idea: an interrupted restore continues from the disk alone: before
the marker it starts again, after it from the files that are there.

Source: docs/protocol.md, "Restore"; docs/format.md, "restoring".
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

import msgspec

from tranlog.checksum import crc32
from tranlog.clock import Clock
from tranlog.disk import Disk, DiskFile
from tranlog.errors import DiskFailedError, PacketError, TranlogError
from tranlog.ids import Epoch, Gtid, Seqno, segment_number
from tranlog.log.files.commit_point import COMMIT_NAME
from tranlog.log.files.directory import RESTORING_NAME, join, replace_file, storing
from tranlog.log.files.index_table import INDEX_NAME
from tranlog.log.files.positions import POSITIONS_NAME
from tranlog.log.files.spilled import list_spill
from tranlog.log.records.spill import SPILL_TABLE_NAME, spill_name, spill_number
from tranlog.replication.acting.core_thread import CoreThread
from tranlog.replication.acting.following import NodeLog
from tranlog.replication.acting.links import Greeting, enter, greet
from tranlog.replication.acting.rollback import save
from tranlog.replication.acting.transport import Wire, one_line
from tranlog.replication.rules.packets import RAW_BYTES, File, Files, Join, JoinRefused, Packet

logger = logging.getLogger(__name__)

RESTORE: Final = "restore"
"""The purpose of a connection over which a log is fetched."""
WANTED_NAME: Final = "restore.wanted"
FETCHED: Final = ".fetched"
"""The suffix of a file that will replace another one."""
_AHEAD: Final = 8
"""So many parts are asked for before the first of them has come."""
_KEPT_S: Final = 1.0
"""So often a source says that it is there, with an empty list of the number 0."""
_SILENT_S: Final = 30.0
"""Within so long something comes from a source, and what was asked for of a file."""
_LISTED_S: Final = 4 * 3600.0
"""Within so long a source, which says meanwhile that it is there, has read its whole log for the sums in its list."""
FileSum = tuple[str, int, int]
"""A file's name, its bytes and their CRC-32."""


class RestoreWanted(msgspec.Struct, frozen=True):
    """A restore that has begun, from the node of that name. Only this log may have the transactions after `after`."""

    source: str
    after: Gtid


# --- the disk of whoever restores ------------------------------------------------------------------------


def begun(path: str, disk: Disk) -> RestoreWanted | None:
    """Return the unfinished restore of the log at `path`. Raises DiskFailedError."""
    name = join(path, WANTED_NAME)
    if not disk.exists(name):
        return None
    try:
        with closing(disk.open(name)) as file:
            return msgspec.json.decode(file.pread(file.size(), 0), type=RestoreWanted)
    except (OSError, msgspec.DecodeError) as exc:
        raise DiskFailedError(path=name, why=f"{exc}; remove it, and order the restore again") from exc


def begin(path: str, wanted: RestoreWanted, disk: Disk) -> None:
    """Begin a restore, durably; remove what an earlier attempt fetched. Raises DiskFullError, DiskFailedError."""
    with storing(path):
        _remove_fetched(path, disk)
        replace_file(join(path, WANTED_NAME), msgspec.json.encode(wanted), disk)


def give_up(path: str, disk: Disk) -> None:
    """End a restore before anything was replaced: no start continues it. Raises DiskFailedError."""
    with storing(path):
        _remove_fetched(path, disk)
        if disk.exists(join(path, WANTED_NAME)):
            disk.unlink(join(path, WANTED_NAME))
            disk.sync_dir(path)


def _remove_fetched(path: str, disk: Disk) -> None:
    for name in disk.list_dir(path):
        if _is_file_of_log(name.removesuffix(FETCHED)) and name.endswith(FETCHED):
            disk.unlink(join(path, name))


def save_alone(log: NodeLog, after: Gtid, clock: Clock) -> int | None:
    """Save what the log has after `after`, or all of it if it does not hold that; return the rollback's number.

    None if there is nothing to save. Raises as `rollback.save`.
    """
    held = after if log.gtid(after.seqno) == after else Gtid(Epoch(0), Seqno(log.first - 1))
    return save(log.log, held, log.last, clock) if log.last.seqno > held.seqno else None


def install(path: str, names: Sequence[str], disk: Disk) -> None:
    """Replace the log at `path`, which has no writer, by the fetched files, which are durable.

    Raises DiskFullError, DiskFailedError: `finish_install` continues then.
    """
    with storing(path):
        replace_file(join(path, RESTORING_NAME), msgspec.json.encode(list(names)), disk)
    finish_install(path, disk)


def finish_install(path: str, disk: Disk) -> bool:
    """Finish an interrupted `install`; return whether there was one. Raises DiskFailedError.

    A file that is in its place does not have its other name any more, so each step can be repeated.
    """
    marker = join(path, RESTORING_NAME)
    if not disk.exists(marker):
        return False
    try:
        with closing(disk.open(marker)) as file:
            names = msgspec.json.decode(file.pread(file.size(), 0), type=list[str])
        for name in names:
            if disk.exists(join(path, name + FETCHED)):
                disk.rename(join(path, name + FETCHED), join(path, name))
        disk.sync_dir(path)
        # The positions file and the index are of the former log, as are segments that the new one has no file for.
        others = [name for name in disk.list_dir(path) if _is_file_of_log(name) and name not in names]
        for name in (*others, POSITIONS_NAME, INDEX_NAME, SPILL_TABLE_NAME, COMMIT_NAME, WANTED_NAME):
            if disk.exists(join(path, name)):
                disk.unlink(join(path, name))
                disk.sync_dir(join(path, name).rpartition("/")[0])
        disk.unlink(marker)
        disk.sync_dir(path)
    except (OSError, msgspec.DecodeError) as exc:
        raise DiskFailedError(path=marker, why=f"{exc}; start the node again") from exc
    return True


def _is_file_of_log(name: str) -> bool:
    return segment_number(name) is not None or spill_number(name) is not None


# --- the way over the wire -------------------------------------------------------------------------------


class _Fetching(Greeting):
    def __init__(self) -> None:
        super().__init__()
        self._came: asyncio.Queue[Packet | None] = asyncio.Queue()

    def heard(self, wire: Wire, packet: Packet, size: int) -> None:
        wire.done(size)
        self._came.put_nowait(packet)

    def lost(self, wire: Wire) -> None:
        super().lost(wire)
        self._came.put_nowait(None)

    async def next(self, within_s: float) -> Packet | None:
        """Return the next answer; None where the connection has ended. Raises TimeoutError: none came in time.

        That the source says it is there prolongs `within_s` by nothing.
        """
        async with asyncio.timeout(within_s):
            while True:
                async with asyncio.timeout(_SILENT_S):
                    packet = await self._came.get()
                if not isinstance(packet, Files) or packet.number:
                    return packet


class Fetch:
    """One attempt to fetch the log of a node. `done` and `total`: bytes, of which `total` is 0 until it is known."""

    def __init__(self, source: str, path: str, disk: Disk) -> None:
        """`source`: the node's name, `path`: of the own log."""
        self.source = source
        self.done = self.total = 0
        self._path = path
        self._disk = disk
        self._wire: Wire | None = None

    async def connect(self, address: str, join: Join, tls: ssl.SSLContext | None) -> None:
        """Connect to the source. Raises OSError, HandshakeError, ConfigError."""
        self._fetching = _Fetching()
        wire, _ = await greet(address, self._fetching, tls)
        self._wire = wire
        await enter(wire, self._fetching, join)

    async def run(self) -> list[str]:
        """Fetch every file, durable and verified, under a name that ends in `.fetched`; return their names.

        Raises PacketError, DiskFullError, DiskFailedError.
        """
        assert self._wire is not None
        self._wire.send(Files(number=1))
        listed = await self._next(_LISTED_S)
        if not isinstance(listed, Files) or not all(_is_file_of_log(name) for name, _, _ in listed.names):
            raise self._failed("it sent no list of its files")
        self.total = sum(size for _, size, _ in listed.names)
        with storing(self._path):
            for one in listed.names:
                with closing(self._disk.open(join(self._path, one[0] + FETCHED), write=True, create=True)) as file:
                    await self._file(file, one)
            await asyncio.to_thread(self._disk.sync_dir, self._path)
        return [name for name, _, _ in listed.names]

    async def _file(self, file: DiskFile, wanted: FileSum) -> None:
        assert self._wire is not None
        name, size, crc = wanted
        asked = came = 0
        while came < size:
            while asked < min(size, came + _AHEAD * RAW_BYTES):
                self._wire.send(File(number=1, name=name, offset=asked, raw=b""))
                asked += RAW_BYTES
            part = await self._next(_SILENT_S)
            if not isinstance(part, File) or part.name != name or not part.raw or part.offset + len(part.raw) > size:
                raise self._failed(f"it sent something else than {name}")
            await asyncio.to_thread(file.pwrite, part.raw, part.offset)
            came += len(part.raw)
            self.done += len(part.raw)
        await asyncio.to_thread(file.sync)
        if await asyncio.to_thread(_sum_of, file, size) != crc:
            raise self._failed(f"the sum of {name} is not the source's")

    async def _next(self, within_s: float) -> Packet:
        """Return the source's next answer. Raises PacketError."""
        try:
            found = await self._fetching.next(within_s)
        except TimeoutError:
            raise self._failed("what was asked for did not come in time") from None
        if found is None:
            raise self._failed("the connection ended")
        if isinstance(found, JoinRefused):
            raise self._failed(f"it says: {one_line(found.text)}")
        return found

    def _failed(self, why: str) -> PacketError:
        return PacketError(kind=f"a file of {self.source}", why=why)

    def close(self) -> None:
        """End the connection, and with it the source's hold."""
        if self._wire is not None:
            self._wire.cut()


def _sum_of(file: DiskFile, size: int) -> int:
    crc = 0
    for at in range(0, size, RAW_BYTES):
        crc = crc32(file.pread(min(RAW_BYTES, size - at), at), crc)
    return crc


class ServedFiles:
    """The source's end of a restore, for one connection. Threads: the event loop's only."""

    def __init__(self, wire: Wire, path: str, disk: Disk, thread: CoreThread) -> None:
        """`path`: of the source's log."""
        self._wire = wire
        self._path = path
        self._disk = disk
        self._thread = thread
        self._sizes: dict[str, int] = {}

    async def keep(self) -> None:
        """Keep everything from being purged while the connection lasts."""
        while not self._wire.gone.is_set():
            self._thread.call(lambda core: core.keep_all(self._wire.peer))
            self._wire.send(Files(number=0))
            with suppress(TimeoutError):
                async with asyncio.timeout(_KEPT_S):
                    await self._wire.gone.wait()

    async def answer(self, packet: Packet, size: int) -> None:
        """Answer a request for the list, or for a part of a file in it."""
        try:
            if isinstance(packet, Files):
                await asyncio.wrap_future(self._thread.call(lambda core: core.keep_all(self._wire.peer)))
                names = await asyncio.to_thread(self._sums, await self._list())
                self._sizes = {name: length for name, length, _ in names}
                self._wire.send(Files(number=packet.number, names=tuple(names)))
            elif isinstance(packet, File) and packet.offset < self._sizes.get(packet.name, 0):
                length = min(RAW_BYTES, self._sizes[packet.name] - packet.offset)
                raw = await asyncio.to_thread(self._read, packet.name, length, packet.offset)
                self._wire.send(msgspec.structs.replace(packet, raw=raw))
            else:
                self._wire.end(f"{type(packet).__name__} from a node that restores its log")
        except (OSError, TranlogError) as exc:
            self._fail(str(exc))
        except Exception as exc:  # whatever it is, the other node must hear of it
            logger.exception("A restore from here failed by an error of this program.")
            self._fail(f"{type(exc).__name__}: {exc}")
        finally:
            self._wire.done(size)

    def _fail(self, why: str) -> None:
        """End the connection, and tell the node that restores its log why: it tries again."""
        if not self._wire.gone.is_set():
            self._wire.send(JoinRefused(text=f"this log cannot be read: {why}"))
            self._wire.end(f"a node restores its log from here, and this log cannot be read: {why}")

    async def _list(self) -> list[tuple[str, int]]:
        """Return the files with the bytes that stay as they are. What records refer to was written before them."""
        log = self._thread.log.log
        found = [(one.name, one.bytes) for one in await asyncio.to_thread(log.segments)]
        for number in await asyncio.to_thread(list_spill, self._path, self._disk):
            with closing(self._disk.open(join(self._path, spill_name(number)))) as file:
                found.append((spill_name(number), file.size()))
        return found

    def _sums(self, sizes: Sequence[tuple[str, int]]) -> list[FileSum]:
        found = []
        for name, size in sizes:
            with closing(self._disk.open(join(self._path, name))) as file:
                found.append((name, size, _sum_of(file, size)))
        return found

    def _read(self, name: str, size: int, offset: int) -> bytes:
        with closing(self._disk.open(join(self._path, name))) as file:
            return file.pread(size, offset)
