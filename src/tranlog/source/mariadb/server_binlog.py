"""What a MariaDB server says of itself and of its binary log: settings, positions, files, prepared transactions.

Owns the refusal of servers that cannot be captured, and where in a server's binlog a log can go on. Whether the last
transaction is the same there is judged by `history`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tranlog.errors import PositionLostError, SourceError, SourceSetupError
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.events import Xid
from tranlog.source.mariadb.position import (
    OFFSETS_WRAP_AT,
    SERVER_CHARACTERS,
    BinlogPosition,
    DomainGtid,
    StartAtFile,
    StartAtGtids,
    StartEarliest,
    StartNow,
    gtid_text,
    is_newer_file,
    parse_gtids,
    parse_start,
    why_lost,
)

logger = logging.getLogger(__name__)

_WANTED: Final = (
    ("binlog_format", "ROW"),
    ("binlog_row_image", "FULL"),
    ("binlog_row_metadata", "FULL"),
)
_EVENTS_AT_ONCE: Final = 1000
_FILE_START: Final = 4
"""Every binlog file begins with four bytes that are no event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How to go on at a server: the position as it is there, and where its last transaction proves it, if it can.

    `look` is a file and an offset in it, at or before that transaction.
    """

    position: BinlogPosition
    look: tuple[str, int] | None = None


class ServerBinlog:
    """One server's settings and the positions in its binlog. Threads: one."""

    def __init__(self, options: MariadbSourceOptions, control: Control) -> None:
        self._options = options
        self._control = control

    def check_setup(self) -> None:
        """Refuse a server that does not log full rows. Raises SourceSetupError, whose remedy holds the statements."""
        for problem in self.setup_problems():
            raise problem
        if self.leaves_out_what_it_replicates():
            logger.warning(
                "This source is a replica without log_slave_updates: what it replicates is not captured. where=%s",
                self._options.where,
            )

    def setup_problems(self) -> Iterator[SourceSetupError]:
        """Yield why the server does not log full rows, each with the statements that mend it."""
        where = self._options.where
        variables = self._variables()
        version = variables.get("version", "")
        if "mariadb" not in version.lower():
            yield SourceSetupError(
                why=f"{where} is version {version!r}, not MariaDB", remedy="Name a MariaDB server, 10.5 or newer"
            )
            return
        if variables.get("log_bin") != "ON":
            yield SourceSetupError(
                why=f"{where} keeps no binary log",
                remedy="Start the server with --log-bin --server-id=<number> --binlog-format=ROW "
                "--binlog-row-image=FULL --binlog-row-metadata=FULL, or put these into its configuration file",
            )
        wrong = [(name, value) for name, value in _WANTED if variables.get(name, "OFF") != value]
        if wrong and "binlog_row_metadata" not in variables:
            yield SourceSetupError(
                why=f"{where} is version {version!r}, which cannot log column names",
                remedy="Capture needs MariaDB 10.5 or newer",
            )
        elif wrong:
            found = ", ".join(f"{name} is {variables[name]}" for name, _ in wrong)
            statements = "; ".join(f"SET GLOBAL {name} = '{value}'" for name, value in wrong)
            yield SourceSetupError(
                why=f"at {where} {found}",
                remedy=f"Run at the source: {statements}; and put the same into its configuration file. Sessions that "
                "are open already keep the old format: end them before you start capture again",
            )

    def leaves_out_what_it_replicates(self) -> bool:
        """Whether the server is a replica whose binlog does not hold what it replicates."""
        variables = self._variables()
        return variables.get("log_slave_updates") == "OFF" and bool(variables.get("gtid_slave_pos"))

    def check_kept(self, position: BinlogPosition) -> None:
        """Refuse a position after which something is purged. Raises PositionLostError."""
        files = self._files()
        oldest = files[0][0]
        held = {one.domain: one.sequence for one in position.gtids}
        begins = parse_gtids(self._gtids_at(oldest, _FILE_START) or "")
        gone = any(one.sequence > held.get(one.domain, 0) for one in begins)
        if gone or (not position.gtids and position.file and position.file not in dict(files)):
            why = f"{self._options.where} has purged its binlog up to {oldest}, and with it what follows"
            raise PositionLostError(event_id=str(position), why=why)

    def kept_s(self) -> int:
        """Return how many seconds the server keeps a binlog file that it does not write to any more; 0: for ever."""
        names = "'binlog_expire_logs_seconds', 'expire_logs_days'"
        found = dict(self._control.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
        days = float(found.get("expire_logs_days", 0))
        return int(found.get("binlog_expire_logs_seconds", round(days * 86_400)))

    def _variables(self) -> dict[str, str]:
        names = [name for name, _ in _WANTED] + ["version", "log_bin", "log_slave_updates", "gtid_slave_pos"]
        listed = ", ".join(f"'{name}'" for name in names)
        rows = self._control.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
        return {str(name).lower(): str(value) for name, value in rows}

    def first_position(self) -> BinlogPosition:
        """Return where a log without any event starts. Raises SourceSetupError, PositionLostError.

        Where an XA transaction may have been prepared before it, the binlog is read from its beginning for that.
        """
        position = self._first()
        start = parse_start(self._options.start)
        if isinstance(start, StartEarliest) or not (
            self.prepared_xids() or (not isinstance(start, StartNow) and self._has_committed_xa())
        ):
            return position
        return msgspec.structs.replace(position, prepared=self._at_file(self.oldest_file(), _FILE_START, "").gtids)

    def _has_committed_xa(self) -> bool:
        return int(self._control.rows("SHOW GLOBAL STATUS LIKE 'Com_xa_commit'")[0][1]) > 0

    def _first(self) -> BinlogPosition:
        text = self._options.start
        start = parse_start(text)
        match start:
            case StartNow():
                return self._now()
            case StartEarliest():
                return self._at_file(self._files()[0][0], _FILE_START, text)
            case StartAtGtids():
                return self.resume(BinlogPosition(gtids=start.gtids)).position
            case StartAtFile():
                return self._at_file(start.file, start.offset, text)

    def _now(self) -> BinlogPosition:
        gtids = parse_gtids(self._control.rows("SELECT @@global.gtid_binlog_pos")[0][0])
        if gtids:
            # Without a file: between two questions the server may have gone on.
            return BinlogPosition(gtids=gtids)
        # A server that has written no transaction yet: the start of its file, so that the event id is not empty.
        return BinlogPosition(file=self._files()[-1][0], offset=_FILE_START)

    def _at_file(self, file: str, offset: int, text: str) -> BinlogPosition:
        gtids = self._gtids_at(file, offset)
        if gtids is None:
            raise PositionLostError(
                event_id=text,
                why=f"{self._options.where} has no file {file}, or no event of it ends at offset {offset}",
            )
        return BinlogPosition(gtids=parse_gtids(gtids), file=file, offset=offset)

    def _gtids_at(self, file: str, offset: int) -> str | None:
        """Return the GTIDs at a place between two events; None where there is no such place."""
        found: str | None = self._control.rows("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
        return found

    def oldest_file(self) -> str:
        """Return the oldest file of the binlog that is not purged."""
        return self._files()[0][0]

    def _files(self) -> list[tuple[str, int]]:
        """Return the binlog's files and their sizes, the oldest first; there is at least one."""
        files = [(str(row[0]), int(row[1])) for row in self._control.rows("SHOW BINARY LOGS")]
        if not files:
            raise SourceSetupError(why=f"{self._options.where} has no binlog file", remedy="Check its log_bin")
        return files

    def server(self) -> str:
        """Return the beginning of the server's uid; empty where the version has none."""
        rows = self._control.rows("SHOW GLOBAL VARIABLES LIKE 'server_uid'")
        return str(rows[0][1])[:SERVER_CHARACTERS] if rows else ""

    def resume(self, position: BinlogPosition, *, accepted: bool = False) -> Resumption:
        """Refuse a position that this server never had or has lost; say how to go on. Raises PositionLostError.

        The GTIDs are held against what the server ever wrote. File and offset are held against its files where they
        are its own: after a crash that cost it its last transactions a server gives out the same GTIDs once more, in
        another file. What GTIDs and numbers cannot tell, the last transaction must prove: the answer says where to
        look for it. `accepted`: an operator's word stands in the place of all proof.
        """
        state: dict[int, int] = {}
        for gtid in _state(self._control.rows("SELECT @@global.gtid_binlog_state")[0][0]):
            state[gtid[0]] = max(gtid[2], state.get(gtid[0], 0))
        why = why_lost(position, server_state=state)
        if why is not None:
            raise PositionLostError(event_id=str(position), why=why)
        server = self.server()
        kept = tuple(gtid for gtid in position.gtids if gtid.domain in state)
        prepared = position.prepared
        if prepared is not None:
            prepared = tuple(gtid for gtid in prepared if gtid.domain in state)
        on = msgspec.structs.replace(position, gtids=kept, server=server, prepared=prepared)
        if accepted:
            return Resumption(position=msgspec.structs.replace(on, file="", offset=0, last=None))
        files = self._files()
        own = position.server == server if position.server else self._wrote(position)
        if own and position.file and position.offset:
            size = dict(files).get(position.file)
            if size is None:
                if is_newer_file(position.file, files[-1][0]):
                    why = f"its newest file is {files[-1][0]}: the server's binlog was reset"
            elif size < OFFSETS_WRAP_AT:
                why = self._why_not_in_file(position, kept, size)
                if why is None:
                    at = position.offset - position.last.size if position.last is not None else 0
                    return Resumption(position=on, look=(position.file, at) if at > 0 else None)
        last = position.last
        wrote = {gtid.domain: gtid for gtid in kept}.get(last.domain) if last is not None else None
        if why is None and wrote is not None:
            file = self._file_of(wrote, files)
            if file is not None:
                return Resumption(position=on, look=(file, _FILE_START))
            if not own:
                why = f"transaction {wrote}, which would prove that it is of the same history, is purged there"
        elif why is None and (kept != position.gtids or (not own and position.server)):
            why = "the event id says too little to prove that it is of the same history"
        if why is not None:
            raise self.lost(position, why)
        return Resumption(position=on)  # what is purged of its own files, the server says itself

    def lost(self, position: BinlogPosition, why: str) -> PositionLostError:
        """Return the refusal of a server as another one than the log's."""
        whose = f" was captured from server {position.server}" if position.server else ""
        return PositionLostError(
            event_id=str(position),
            why=f"{self._options.where} is server {self.server()}; the log{whose}; {why}",
            way_on="Where this server has what that one had (a replica, a primary, the same server moved), "
            "`tranlog capture --accept-server` goes on by GTID. ",
        )

    def lost_branches(self, position: BinlogPosition, why: str) -> PositionLostError:
        """Return the refusal of a place before a prepared XA transaction that the server does not have."""
        listed = "; ".join(map(str, self.prepared_xids())) or "none any more"
        return PositionLostError(
            event_id=str(position),
            why="an XA transaction was prepared after GTIDs "
            f"{gtid_text(position.prepared or ()) or '(none)'} and had not ended, and what it changed is not to be had "
            f"({why}); prepared there are now: {listed}",
        )

    def prepared_xids(self) -> list[Xid]:
        """Return the XA transactions that are prepared at the server."""
        xids = []
        for form, gtrid_bytes, _, data in self._control.rows("XA RECOVER"):
            name = data if isinstance(data, bytes) else data.encode()
            xids.append(Xid(int(form), name[:gtrid_bytes], name[gtrid_bytes:]))
        return xids

    def _wrote(self, position: BinlogPosition) -> bool:
        own = int(self._control.rows("SELECT @@global.server_id")[0][0])
        return not position.gtids or any(gtid.server_id == own for gtid in position.gtids)

    def _file_of(self, gtid: DomainGtid, files: list[tuple[str, int]]) -> str | None:
        """Return the file that must hold a transaction; None where it is purged."""

        def begins_after(file: tuple[str, int]) -> bool:
            before = {one.domain: one for one in parse_gtids(self._gtids_at(file[0], _FILE_START) or "")}.get(
                gtid.domain
            )
            return before is not None and before.sequence >= gtid.sequence

        first_after = bisect_left(files, True, key=begins_after)
        return files[first_after - 1][0] if first_after else None

    def _why_not_in_file(self, position: BinlogPosition, kept: tuple[DomainGtid, ...], size: int) -> str | None:
        if size < position.offset:
            return f"{position.file} ends at offset {size}: the server lost the end of its binlog, or was reset"
        found = self._gtids_at(position.file, position.offset)
        if found is None:
            # An event before it that is larger than max_allowed_packet keeps the server from an answer as well.
            if self._is_boundary(position.file, position.offset):
                return None
            return f"no event of {position.file} ends at offset {position.offset}: it is not the file that was captured"
        if parse_gtids(found) not in (position.gtids, kept):
            return (
                f"at offset {position.offset} of {position.file} the server stands at GTID {found or '(none)'}, not at "
                f"{gtid_text(position.gtids) or '(none)'}: it is not the file that was captured"
            )
        return None

    def statements_after(self, place: tuple[str, int]) -> Iterator[tuple[tuple[str, int], str]]:
        """Yield the statements of the binlog from a place on, file and offset between two events, with that after each.

        As SHOW BINLOG EVENTS tells them; an empty one stands for events that are none. All that was written before the
        call is among them. Raises PositionLostError where the file is purged.
        """
        file, offset = place
        names = [name for name, _ in self._files()]
        if file not in names:
            raise PositionLostError(event_id=f"{file}:{offset}", why=f"{self._options.where} has purged {file}")
        for name in names[names.index(file) :]:
            offset = offset if name == file else _FILE_START
            while rows := self._control.rows(f"SHOW BINLOG EVENTS IN '{name}' FROM {offset:d} LIMIT {_EVENTS_AT_ONCE}"):
                for _, _, kind, _, offset, info in rows:
                    yield (name, offset), str(info) if str(kind).startswith("Query") else ""

    def _is_boundary(self, file: str, offset: int) -> bool:
        """Whether an event of the file begins at the offset, or the last one ends there."""
        try:
            self._control.rows(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset:d} LIMIT 1")
        except SourceError:
            return False
        return True


def _state(text: str) -> list[tuple[int, int, int]]:
    """Read a binlog state: like a GTID list, but with a GTID of every server in each domain."""
    entries = []
    for part in filter(None, text.split(",")):
        domain, server_id, sequence = part.strip().split("-")
        entries.append((int(domain), int(server_id), int(sequence)))
    return entries
