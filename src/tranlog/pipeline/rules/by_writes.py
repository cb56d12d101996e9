"""Which channel applies a transaction by what it writes, for whom it waits, and from where that is computed.

Owns the assignment by write sets (`Assignment`), the plan that it begins from (`WritesPlan`), the rules by which a
channel walks through the log then (`WritesWalk`), and how the source's order is kept (`SourceOrder`). The hard idea:
who waits for whom depends on all transactions since some point, and on what the target looked like there. So that
point is serial, what was found there is stored at the target with its position, and every channel computes the same
from the same headers and the same row: again after a restart, whatever the target looks like by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from tranlog.change import TableName
from tranlog.errors import ConfigError
from tranlog.header import Passes
from tranlog.ids import Seqno
from tranlog.pipeline.rules.channels import COMMIT_COST, SERIAL, Await, Finish, Publish, Skip, Take, Verdict, Walk
from tranlog.pipeline.rules.write_order import Estimate, Homes, Passing, WriteOrder, with_more
from tranlog.target.target import TargetKeys, TextEquality
from tranlog.write_item import Touches
from tranlog.write_set import (
    ANYTHING,
    TOUCHES_MAX,
    Operations,
    WriteKind,
    WriteSet,
    WrittenTable,
    ascii_id,
    key_id,
    reference_id,
    text_id,
)

NOBODY: Final = -2
"""The owner of a transaction without changes: every channel passes over it."""

RULE_VERSION: Final = 3
"""Of the assignment. Another result for the same headers is another version."""
TABLES_MAX: Final = 1_000
"""A plan that would hold more tables than this begins with those that were touched since the last one."""
ALONE: Final = "channel 0 runs alone: too many were serial before"
CROWDED: Final = "channel 0 runs alone: the channels would wait for each other"
ORDINARY: Final = ("", ALONE, CROWDED)
"""What of `Assigned.why` says nothing of the transaction itself."""
_NO_GAIN: Final = 100
_GAIN_AGAIN: Final = 133
"""All channels run again where they are so fast, in percent of one: more than no gain, so that it is seldom tried."""
_WELL: Final = 50
"""So many percent of one channel, for each channel, are well divided."""
_FEW: Final = 200
"""So few transactions after a plan point do not show what belongs together."""
_ROUNDS: Final = 6
_NEVER: Final = 1 << 62
_ALONE_PART: Final = 8
"""A stretch on channel 0 alone is by so much shorter than another one: a burst of statements may be over by then."""

Writes: TypeAlias = WriteSet | str | None
"""What a header tells: a text says why its rows are applied alone whatever they are; None: nothing is told."""


# --- the plan --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKey:
    """A key at the target with texts in it. `key`: its id; `told`: the one where the same columns hold texts there.

    `every`: a hash that stands for all its values, or for all values of what it refers to.
    """

    key: int
    told: int
    every: int
    refers: bool
    equality: TextEquality


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """A table at the target. `keys`: ids of the keys that it holds rows to; `texts`: those of them with texts.

    `why`: for what reason transactions that do something of `serial_on` to it run alone, empty for none.
    """

    table: TableName
    keys: tuple[int, ...] = ()
    texts: tuple[TextKey, ...] = ()
    why: str = ""
    serial_on: int = int(ANYTHING)

    def told_by(self, ids: Collection[int]) -> bool:
        """Whether a write set that tells these keys tells all that the target has."""
        lacking = set(self.keys).difference(ids)
        return not lacking or lacking <= {text.key for text in self.texts if text.told in ids}

    def of_texts(self, written: WrittenTable) -> Touches:
        """Return what a transaction touches beside its hashes, since texts may be equal that they tell apart.

        Where that is so of some texts, those touch every value of their key, and the others what stands for every value
        as one REFERENCE more: so these do not wait for each other.
        """
        touches: tuple[list[int], list[int], list[int]] = ([], [], [])
        keys, rows, references = touches
        for text in self.texts:
            as_texts = text.told in written.keys
            if as_texts and text.equality == TextEquality.FOLDED:
                continue
            if as_texts and text.equality == TextEquality.ASCII:
                (references if ascii_id(text.told) in written.keys else keys).append(text.every)
            elif text.refers and as_texts:
                references.append(text.every)
            elif written.operations == Operations.UPDATE and not text.refers:
                rows.append(text.every)
            else:
                keys.append(text.every)
        return tuple(keys), tuple(rows), tuple(references)


def planned_table(
    name: TableName,
    at_target: Mapping[TableName, TargetKeys],
    sources: Mapping[TableName, TableName],
    independent: Collection[str],
) -> PlannedTable:
    """Return what a plan says of the source's table `name`.

    `at_target` has all that it knows, by the source's names; `sources`: these by their names at the target, in lower
    case; `independent` names triggers that read and write nothing that another transaction may touch.
    """
    found = at_target[name]
    triggers = [trigger for trigger in found.triggers if trigger not in independent]
    why, serial_on = found.why, ANYTHING
    if not why and triggers:
        why = f"trigger {', '.join(triggers)}"
    if not why and found.actions:
        why, serial_on = found.actions, Operations.DELETE | Operations.REKEY
    keys: set[int] = set()
    texts: list[TextKey] = []

    def add(key: int, columns: Iterable[str], every: int, refers: bool, equalities: Collection[TextEquality]) -> None:
        keys.add(key)
        own = [column for column in columns if column in found.texts]
        if own:
            equality = max(equalities, default=TextEquality.FOLDED)
            told = text_id(key, own)
            texts.append(TextKey(key=key, told=told, every=every, refers=refers, equality=equality))

    for columns in found.unique:
        number = key_id(name, columns)
        add(number, columns, number, False, [found.texts[one] for one in columns if one in found.texts])
    for columns, to, to_columns in found.references:
        there = sources.get((to[0].lower(), to[1].lower()), to)
        # What is equal is decided where it refers to. A table that the plan does not know is not changed beside this.
        parent = at_target[there].texts if there in at_target else {}
        number = reference_id(name, columns, there, to_columns)
        equalities = [parent[one] for one in to_columns if one in parent]
        add(number, columns, key_id(there, to_columns), True, equalities)
    return PlannedTable(
        table=name,
        keys=tuple(sorted(keys)),
        texts=tuple(sorted(texts, key=lambda text: text.key)),
        why=why,
        serial_on=int(serial_on),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesBounds:
    """The constants of the assignment; a plan has those that it was made with."""

    every: int = 16_384
    """A plan begins anew at each multiple of this seqno,"""
    entries: int = 1_000_000
    """and after so many entries of the tables of hashes."""
    lead: int = 2_000
    """By how many row changes a channel may be ahead of the least loaded and still get what depends on it."""
    serial_in: int = 200
    """Where more than one transaction in so many was serial, the next stretch, a shorter one, runs on channel 0
    alone."""
    judged: int = 1_000
    """After each so many transactions it is asked whether the channels wait for each other so often that one alone
    takes no longer: if so twice in a row the stretch ends, and the next one runs on channel 0 alone."""
    homes: int = 256
    """The next plan knows of so many values of keys, those touched most, on which channel they were,"""
    touched: int = 4
    """and no less than so often; so that what belongs together need not come together again."""
    commit: int = COMMIT_COST
    """A commit takes as long as so many row changes, for that question; 0: it is not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritesPlan:
    """What the assignment of the transactions after `from_seqno`, a plan point, is computed from, beside their headers.

    `alone`: they all run on channel 0, since many were serial. `counted` and `serial`: transactions not judged yet for
    that, steps of a load apart, and those among them that were serial. `crowded`: they all run on channel 0, since the
    channels would wait for each other. `homes`: values of keys that were touched often, by their hashes, and on which
    channel. `missed`: tables of which a write set has not told everything. `filters`: a hash of the pipeline's filters;
    headers do not show what those make of a transaction.
    """

    from_seqno: Seqno
    channels: int
    tables: tuple[PlannedTable, ...] = ()
    missed: tuple[TableName, ...] = ()
    filters: str = ""
    alone: bool = False
    counted: int = 0
    serial: int = 0
    crowded: bool = False
    homes: Homes = ()
    bounds: WritesBounds = WritesBounds()
    version: int = RULE_VERSION

    @property
    def why_alone(self) -> str:
        """Why channel 0 runs alone; empty: it does not."""
        return ALONE if self.alone else CROWDED if self.crowded else ""

    def serial_tables(self) -> dict[str, str]:
        """Return the tables whose transactions run alone, with the reason."""
        told = {".".join(one.table): one.why for one in self.tables if one.why}
        return told | {".".join(table): "a dependency was missed" for table in self.missed}

    def text(self) -> str:
        """Return the plan as `tranlog_plan.plan` stores it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def parse(cls, text: str) -> WritesPlan:
        """Read what `text` wrote. Raises ConfigError for what another release wrote, or none."""
        try:
            plan = msgspec.json.decode(text, type=cls)
            why = "" if plan.version == RULE_VERSION else f"version {plan.version}; this release knows {RULE_VERSION}"
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            why = str(exc)
        if why:
            why = f"the target's tranlog_plan row is not of this release: {why}. Set the pipeline's position anew"
            raise ConfigError(option="plan", value=text, why=why)
        return plan


def in_force(plans: Iterable[WritesPlan], position: Seqno) -> WritesPlan | None:
    """Return the plan for what comes after a position; None: there is none yet. Older ones are not needed there."""
    begun = (plan for plan in plans if plan.from_seqno <= position)
    return max(begun, key=lambda plan: plan.from_seqno, default=None)


# --- the assignment --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Who applies a transaction: a channel, SERIAL or NOBODY; after which others.

    `waits`: the transactions, channel and seqno, that must be in the target before. `point`: another plan begins after
    it. `why`: what makes it run alone, if only that channel 0 applies everything. `doubted`: it met a conflict while
    others had not applied everything before it, and is taken when they have. `more`: what it touches beside its header.
    """

    owner: int
    waits: tuple[tuple[int, Seqno], ...] = ()
    point: bool = False
    why: str = ""
    doubted: bool = False
    more: Touches | None = None


_NOBODY: Final = Assigned(owner=NOBODY)
_ROWS: Final = bytes([WriteKind.ROWS])
_SERIAL_KINDS: Final = {
    WriteKind.STATEMENT: "a statement",
    WriteKind.STEP: "a step of a load",
    WriteKind.MANY: f"more than {TOUCHES_MAX} values of keys",
}


def alone_for(writes: Writes) -> str:
    """Say why a transaction must run alone at any target; empty: it need not."""
    if writes is None:
        return "its header has no write set"
    if isinstance(writes, str):
        return writes
    if writes.kind is not WriteKind.ROWS:
        return _SERIAL_KINDS[writes.kind]
    keyless = next((".".join(written.table) for written in writes.tables if not written.keys), "")
    return f"{keyless}: without a key, or the first of it that capture saw" if keyless else ""


class Assignment:
    """The assignment of the transactions after a plan point, asked for one after the other. Threads: one.

    After a plan point it is another's turn, which begins from the plan made there. `plan` None: there is none yet, so
    the next transaction is a plan point.
    """

    def __init__(self, plan: WritesPlan | None) -> None:
        self.plan = plan
        self._tables = {} if plan is None else {one.table: one for one in plan.tables}
        self._serial = 0 if plan is None else plan.serial
        bounds = WritesBounds() if plan is None else plan.bounds
        channels, counted, homes = (1, 0, ()) if plan is None else (plan.channels, plan.counted, plan.homes)
        estimate = Estimate(channels, commit=bounds.commit, judged=bounds.judged)
        self.order = WriteOrder(channels, bounds.lead, estimate, counted, homes)
        self.lacking: set[TableName] = set()
        """Tables that headers have named since, and that the plan does not know."""

    def assign(self, seqno: Seqno, writes: Writes) -> Assigned:
        """Return who applies the next transaction."""
        plan = self.plan
        lacking = 0
        if isinstance(writes, WriteSet):
            for written in writes.tables:
                if written.table not in self._tables:
                    self.lacking.add(written.table)
                    lacking += 1
        if plan is None:
            return Assigned(owner=SERIAL, point=True, why="there is no plan yet")
        why = self._serial_for(plan, writes)
        nothing = isinstance(writes, WriteSet) and not why and not writes.changes
        step = isinstance(writes, WriteSet) and writes.kind is WriteKind.STEP
        if not nothing and not step:  # which are few after the load again
            self.order.counted += 1
            self._serial += why != ""
        # It may have changed the target's tables; or the next plan knows its table.
        unseen = writes is None or lacking or (isinstance(writes, WriteSet) and writes.kind is WriteKind.STATEMENT)
        point = (
            seqno % plan.bounds.every == 0
            or self.order.entries >= plan.bounds.entries
            or bool((unseen or self.order.estimate.crowded) and not plan.why_alone)
        )
        if point:
            return Assigned(owner=SERIAL, point=True, why=why or "a plan begins")
        if nothing:
            return _NOBODY
        if why:
            return Assigned(owner=0 if plan.why_alone else SERIAL, why=why)
        assert isinstance(writes, WriteSet)
        more = self._of_texts(writes)
        touches = writes.touches if more is None else with_more(writes.touches, more)
        owner, waits = self.order.assign(seqno, writes.changes, touches)
        if plan.why_alone:  # what it would be is asked all the same, for the next plan
            return Assigned(owner=0, why=plan.why_alone, more=more)
        return Assigned(owner=owner, waits=waits, more=more)

    def _of_texts(self, writes: WriteSet) -> Touches | None:
        """Return what a transaction touches beside its write set, None for nothing."""
        more: Touches | None = None
        for written in writes.tables:
            table = self._tables[written.table]
            if table.texts:
                found = table.of_texts(written)
                more = found if more is None else with_more(more, found)
        return more if more and any(more) else None

    def passing(self, channel: int, critical: frozenset[bytes]) -> Passing | None:
        """Return what a channel passes over by the bytes of headers, in the place of `assign`; None without a plan.

        It has to `learn` what `assign` has found to be no reason to run alone.
        """
        plan = self.plan
        if plan is None:
            return None
        bounds = plan.bounds
        return Passing(
            self.order,
            channel=channel,
            every=bounds.every,
            entries=bounds.entries,
            alone=bool(plan.why_alone),
            critical=critical,
        )

    def _serial_for(self, plan: WritesPlan, writes: Writes) -> str:
        """Say why a transaction must run alone; empty: it need not."""
        why = alone_for(writes)
        if why:
            return why
        assert isinstance(writes, WriteSet)
        for written in writes.tables:
            name = ".".join(written.table)
            table = self._tables.get(written.table)
            if table is None:
                return f"{name}: not in the plan"
            if written.table in plan.missed:
                return f"{name}: a dependency was missed"
            if table.why and written.operations & table.serial_on:
                return f"{name}: {table.why}"
            if not written.keys.issuperset(table.keys) and not table.told_by(written.keys):
                return f"{name}: a key of the target that the source does not tell"
        return ""

    def next_tables(self) -> set[TableName]:
        """Return the tables that the next plan is to know."""
        known = self._tables.keys() | self.lacking
        return known if len(known) <= TABLES_MAX else self.lacking

    def next_plan(
        self, point: Seqno, today: WritesPlan, missed: Iterable[TableName] = (), ahead: Sequence[Writes] = ()
    ) -> WritesPlan:
        """Return the plan for what comes after `point`, the plan point just assigned.

        `today` has the pipeline's channels and constants and the target's tables as they are now, `missed` the tables
        found since the last plan of which a write set has not told everything, `ahead` what the headers after `point`
        tell, as far as they are there and looked at.
        """
        before = self.plan
        alone = before is not None and before.alone
        counted, serial = self.order.counted, self._serial
        if counted >= today.bounds.serial_in:
            alone = serial * today.bounds.serial_in > counted
            counted = serial = 0
        bounds = today.bounds
        crowded = before is not None and before.crowded and bounds.commit > 0
        estimate = self.order.estimate
        if estimate.taken >= bounds.judged:
            crowded = estimate.gain() < _GAIN_AGAIN if crowded else estimate.crowded
        if alone:
            bounds = replace(bounds, every=min(bounds.every, max(bounds.every // _ALONE_PART, bounds.serial_in)))
        all_missed = {*missed, *(() if before is None else before.missed)}
        plan = replace(
            today,
            from_seqno=point,
            bounds=bounds,
            alone=alone,
            counted=counted,
            serial=serial,
            crowded=crowded,
            homes=self._homes(today),
            missed=tuple(sorted(all_missed)),
        )
        if len(ahead) < _FEW:
            return plan
        homes, gain = settled(plan, ahead)
        if len(ahead) >= bounds.judged and bounds.commit > 0 and plan.channels > 1:
            crowded = gain < (_GAIN_AGAIN if plan.crowded else _NO_GAIN + 1)
        return replace(plan, homes=homes, crowded=crowded)

    def _homes(self, today: WritesPlan) -> Homes:
        """Return the homes of the next plan: what this one has divided well; after a few transactions, its own."""
        plan, bounds, estimate = self.plan, today.bounds, self.order.estimate
        if plan is None or plan.channels != today.channels:
            return ()
        if estimate.taken < bounds.judged:
            return plan.homes
        return self.order.homes(bounds.homes, bounds.touched) if estimate.gain() >= _WELL * today.channels else ()


def settled(plan: WritesPlan, ahead: Sequence[Writes]) -> tuple[Homes, int]:
    """Return where values should be, so that the channels gain most of the transactions ahead, and the gain in percent.

    These are assigned again and again, each time with where the last one has left what is touched often, so that what
    belongs together comes together before the first of them is applied. From the plan's own homes, and from none.
    """
    bounds = replace(plan.bounds, every=_NEVER, entries=_NEVER, judged=_NEVER)
    trial = replace(plan, alone=False, crowded=False, bounds=bounds)
    best, most = plan.homes, -1
    for start in dict.fromkeys((plan.homes, ())):
        homes, seen = start, set[Homes]()
        while homes not in seen and len(seen) < _ROUNDS:
            seen.add(homes)
            assignment = Assignment(replace(trial, homes=homes))
            for seqno, writes in enumerate(ahead, plan.from_seqno + 1):
                assignment.assign(Seqno(seqno), writes)
            gain = assignment.order.estimate.gain()
            if gain > most:
                best, most = homes, gain
            homes = assignment.order.homes(bounds.homes, bounds.touched)
    return best, most


def resume(plan: WritesPlan | None, position: Seqno, writes_of: Callable[[Seqno], Writes]) -> tuple[Assignment, bool]:
    """Return the assignment as it is after `position`, and whether the transaction there is serial.

    `plan` is the one in force there; the headers since it are read again by `writes_of`.
    """
    assignment = Assignment(plan)
    if plan is None:
        return assignment, False
    serial = True  # a plan point is
    for seqno in range(plan.from_seqno + 1, position + 1):
        serial = assignment.assign(Seqno(seqno), writes_of(Seqno(seqno))).owner == SERIAL
    return assignment, serial


# --- the source's order ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOrder:
    """Who applies which transaction where the target gets them in the source's order: so many in a row one channel.

    A channel sends a group when everything before it is in the target (`WritesWalk.turn`), so no write set is asked
    and no plan is stored. Alone runs only what changes what the others have read of the target, or may.
    """

    channels: int
    in_a_row: int

    def owner(self, seqno: Seqno) -> int:
        """Return the channel of a transaction that changes rows."""
        return seqno // self.in_a_row % self.channels

    def assign(self, seqno: Seqno, writes: Writes) -> Assigned:
        """Return who applies a transaction; no other one's matters for that."""
        if not isinstance(writes, WriteSet) or writes.kind not in (WriteKind.ROWS, WriteKind.MANY):
            return Assigned(owner=SERIAL, why=alone_for(writes))
        return Assigned(owner=self.owner(seqno)) if writes.changes else _NOBODY

    def passing(self, walk: WritesWalk, critical: Collection[bytes]) -> Passes:
        """Return what a walk that has taken nothing passes over by the bytes of headers; it notes that there."""

        def passes(seqno: int, shard: bytes, tables: tuple[TableName, ...] | None, item: bytes) -> bool:
            owner = self.owner(Seqno(seqno))
            # Without a row it is nobody's.
            if owner == walk.channel or item[:1] != _ROWS or item[1:2] == b"\0" or shard in critical:
                return False
            walk.after = owner, Seqno(seqno)
            return True

        return passes

    def resume(
        self, channel: int, position: Seqno, low: Seqno, writes_of: Callable[[Seqno], Writes]
    ) -> tuple[tuple[int, Seqno] | None, bool]:
        """Return what a channel's next group comes after, as `WritesWalk.after`, and whether `position` is serial.

        All channels have applied everything up to `low`; `writes_of` reads the headers after it, up to the position.
        """
        after, serial = None, False
        for number in range(low + 1, position + 1):
            seqno = Seqno(number)
            owner = self.assign(seqno, writes_of(seqno)).owner
            serial = owner == SERIAL
            if owner not in (NOBODY, SERIAL, channel):
                after = owner, seqno
        return after, serial


# --- the walk --------------------------------------------------------------------------------------------


class WritesWalk(Walk):
    """One channel's way through the log by write sets: `Walk`, with waits for single transactions of others.

    `ordered`: the target gets transactions in the source's order. `after` is then the last transaction of another
    channel that was passed, channel and seqno, None for none.
    """

    ordered = False
    after: tuple[int, Seqno] | None = None

    def turn(self) -> Await | Finish | None:
        """Return what to wait for before what was taken may be applied in the source's order; None: its turn has come.

        Whoever applied that one had waited for all before it in the same way. Finish: the run is to end before it.
        """
        if self.after is None or not self.owes or self._applied.get(self.after[0], -2) >= self.after[1]:
            return None
        if self.limit is not None and self.limit < self.passed:
            return Finish()
        return Await(channels=(self.after[0],), seqno=self.after[1])

    def step(self, seqno: Seqno, assigned: Assigned, tstamp: int = 0) -> Verdict:
        """Return what to do at the next transaction, as `at` does; after Skip and Take call `pass_by`."""
        verdict = self.at(seqno, assigned.owner, tstamp)
        if self.ordered:
            if isinstance(verdict, Skip) and self.owes and assigned.owner != NOBODY:
                return Publish(seqno=self.passed)  # else the next group would stand on both sides of it
            return verdict
        if isinstance(verdict, Skip):
            # Whoever waits for what is taken here sees the same header, and would wait for the group's end.
            if any(channel == self.channel and self.published < one for channel, one in assigned.waits):
                return Publish(seqno=self.passed)
        elif isinstance(verdict, Take):
            for channel, one in assigned.waits:
                if self._applied.get(channel, -2) < one:
                    return Publish(seqno=self.passed) if self.owes else Await(channels=(channel,), seqno=one)
            if assigned.doubted:
                wait = self.doubt(seqno, assigned)
                return verdict if wait is None else Publish(seqno=self.passed) if self.owes else wait
        return verdict

    def pass_by(self, seqno: Seqno, assigned: Assigned) -> Publish | None:
        """Note that the transaction was skipped or taken, as `step` said; return what to do before the next one.

        That is at a plan point, where channel 0 stores the next plan with this position; others then read it.
        """
        self.move_on(seqno, assigned.owner)
        if self.ordered and assigned.owner not in (NOBODY, SERIAL, self.channel):
            self.after = assigned.owner, seqno
        return Publish(seqno=seqno) if assigned.point and self.channel == 0 else None

    def doubt(self, seqno: Seqno, assigned: Assigned) -> Await | None:
        """Return what to wait for before a conflict at this transaction, which was tried alone, is believed.

        A write set may not have told everything: then the conflict is gone once all others have applied everything
        before it. None: they had when it was tried, so the conflict is real. Ends with the others' sync interval, since
        nothing else has them publish there.
        """
        if assigned.owner == SERIAL or assigned.why or self.ordered:
            return None  # nobody else applied anything, or all had before
        behind = tuple(other for other in self._others if self._applied.get(other, -2) < seqno - 1)
        return Await(channels=behind, seqno=Seqno(seqno - 1)) if behind else None
