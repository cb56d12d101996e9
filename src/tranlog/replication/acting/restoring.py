"""The restores of a node: when one begins, when it is tried again, and its progress.

Owns the steps around the files, which are `restore.py`'s. Transactions that only this node has are saved, the log is
fetched while the own one is still there, and then the node's thread ends and another one begins with the new log. The
hard idea: only that last step cannot be interrupted, so a node that is stopped waits for it.

Source: docs/replication.md, "A whole log of another node".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from tranlog.replication.acting.restore import (
    RESTORE,
    Fetch,
    RestoreWanted,
    ServedFiles,
    begin,
    begun,
    give_up,
    install,
    save_alone,
)
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.config import Member
from tranlog.replication.rules.effects import Restore

if TYPE_CHECKING:
    from tranlog.replication.acting.node import GroupNode

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
_PAUSE_MOST_S: Final = 10.0


class RestoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a restore is: bytes of `source`'s log; `bytes_total` is 0 until it is known. `trouble`: of the last
    attempt, which is followed by another one."""

    source: str
    bytes_done: int
    bytes_total: int
    trouble: str

    def __str__(self) -> str:
        trouble = f"; before: {self.trouble}" if self.trouble else ""
        return f"{self.bytes_done} of {self.bytes_total or 'unknown'} bytes from {self.source}{trouble}"


class Restoring:
    """The restores of one node. Threads: the event loop's alone."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node
        self.served: dict[Wire, ServedFiles] = {}
        self._fetch: Fetch | None = None
        self._trouble = ""
        self._attempts = 0
        self._task: asyncio.Task[None] | None = None
        self._last_step: asyncio.Future[None] | None = None

    def serve(self, wire: Wire) -> None:
        """Let another node copy this one's log, which serves reads."""
        node = self._node
        assert node.thread is not None
        self.served[wire] = ServedFiles(wire, node.options.dir, node.disk, node.thread)
        node.spawn(self.served[wire].keep())

    @property
    def status(self) -> RestoreStatus | None:
        """The progress of a restore; None if there is none."""
        one = self._fetch
        if one is None or self._task is None or self._task.done():
            return None
        return RestoreStatus(source=one.source, bytes_done=one.done, bytes_total=one.total, trouble=self._trouble)

    def resume(self) -> None:
        """Continue a restore that was begun before the node ended."""
        node = self._node
        wanted = begun(node.options.dir, node.disk)
        if wanted is not None and node.thread is not None:
            named = [one for one in node.standing.config.members if one.name == wanted.source]
            others = named or [one for one in node.standing.config.members if one.node != node.node and not one.witness]
            if others:
                node.thread.call(lambda core: core.restore(others[0].node, wanted.after))

    def want(self, wanted: Restore) -> None:
        """The node needs a whole log, or an operator ordered a restore."""
        node = self._node
        if not wanted.ordered and node.options.restore != "auto":
            name = node.options.node
            logger.error("This node needs a whole log: tranlog group restore %s", name)
            return
        if self._task is not None and not self._task.done():
            if not wanted.ordered or self._last_step is not None:
                return  # it is under way
            self._task.cancel()
        self._trouble, self._attempts = "", 0
        self._task = node.spawn(self._run(wanted))

    async def attempted(self) -> str:
        """Wait until the restore is done, or one attempt has failed; return why it has."""
        while self._task is not None and not self._task.done() and not self._attempts:
            await asyncio.wait([self._task], timeout=0.05)
        return self._trouble

    async def settled(self) -> None:
        """Wait until the step that cannot be interrupted is over."""
        if self._last_step is not None:
            with contextlib.suppress(BaseException):
                await asyncio.shield(self._last_step)

    async def _run(self, wanted: Restore) -> None:
        pause = _PAUSE_S
        while (source := self._source(wanted)) is not None:
            try:
                await self._once(source, wanted)
                return
            except Exception as exc:  # whatever it is: without a log this node serves nobody
                self._trouble = str(exc) or repr(exc)
                self._attempts += 1
                logger.warning("A restore failed, and begins again. why=%s", exc)
            finally:
                if self._fetch is not None:
                    self._fetch.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MOST_S)
        node = self._node
        assert node.thread is not None
        await asyncio.to_thread(give_up, node.options.dir, node.disk)
        logger.warning("This node keeps the log that it has: the group has no other one any more.")
        node.thread.call(lambda core: core.rolled_back())

    def _source(self, wanted: Restore) -> Member | None:
        """Return the node that was named, or whoever is primary, after that has failed or has left the group; None
        where no other node of the group has a log."""
        node, at = self._node.node, self._node.standing
        named, primary = at.config.member(wanted.source), at.config.member(at.primary)
        others = [one for one in at.config.members if one.node != node and not one.witness]
        if primary in others and (named is None or (self._attempts and not wanted.ordered)):
            return primary
        return named or next(iter(others), None)

    async def _once(self, source: Member, wanted: Restore) -> None:
        node, thread = self._node, self._node.thread
        assert thread is not None
        path, disk = node.options.dir, node.disk
        fetch = self._fetch = Fetch(source.name, path, disk)
        join = msgspec.structs.replace(node.join(), purpose=RESTORE)
        await fetch.connect(node.links.address(source), join, node.tls)
        rid = await asyncio.wrap_future(
            thread.call(lambda core: save_alone(thread.log, wanted.after, node.clock)),
        )
        if rid is not None:
            logger.info("What this node alone may have is saved. rollback=%d", rid)
        await asyncio.to_thread(begin, path, RestoreWanted(source.name, wanted.after), disk)
        names = await fetch.run()
        self._last_step = asyncio.ensure_future(self._replace(names))
        try:
            await asyncio.shield(self._last_step)
        finally:
            await self.settled()
            self._last_step = None
        logger.info("This node has the log of another one. source=%s bytes=%d", source.name, fetch.total)

    async def _replace(self, names: list[str]) -> None:
        node = self._node
        assert node.thread is not None
        await asyncio.wrap_future(node.thread.call(lambda core: core.gives_up()))
        thread, node.thread = node.thread, None
        for wire in list(self.served):
            wire.end("this node's own log is replaced", warn=False)
        try:
            await asyncio.to_thread(thread.stop)
            await asyncio.to_thread(install, node.options.dir, names, node.disk)
            await node.begin()
        except BaseException as exc:
            node.failed(exc)
            raise
