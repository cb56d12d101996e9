"""Stories of a group as text: commands, a line `----`, what they print.

`nodes a b c:witness d:delay1500` makes the group; then come commands, which are the methods `_do_...` of `Story`. A
story stands in a file of `tests/sim/scenarios/`; the test that runs it can write what it prints.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

import msgspec

from sim.cluster import Cluster
from sim.group import HeldPlace
from sim.node import GROUP, SMALL, SimNode
from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, Member, NodeId, successor
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.packets import RAW_BYTES, STATE_NAMES

PATIENCE_MS = 20_000
SHORT = replace(SMALL, segment_bytes=1_000)
SEPARATOR = "----"
LONG_ENOUGH = 1000
"""So long is the text of a commit that the next one begins a segment, which can be purged."""


def rewritten_text(text: str) -> str:
    """Return the story with what its commands really print behind each separator."""
    story = Story()
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        commands = block.split(f"\n{SEPARATOR}")[0].rstrip()
        printed = [line for command in commands.splitlines() for line in story.do(command)]
        blocks.append("\n".join([commands, SEPARATOR, *printed]) if printed else commands)
    return "\n\n".join(blocks) + "\n"


class Story:
    """A group, told what to do by one line after the other."""

    def __init__(self) -> None:
        self.cluster = Cluster(1, config=GroupConfig(group=GROUP))
        self.waiting: dict[str, int] = {}
        self.places: dict[str, HeldPlace] = {}
        self.opened: dict[str, tuple[str, tuple[int, OpenTransaction | None]]] = {}

    def do(self, line: str) -> list[str]:
        """Do what a line says; return what it prints. Raises ValueError for a line that says nothing known."""
        words = shlex.split(line.partition("#")[0])
        if not words:
            return []
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word and not word[0].isdigit())
        plain = [word for word in words[1:] if "=" not in word or word[0].isdigit()]
        command = getattr(self, "_do_" + words[0].replace("-", "_"), None)
        if command is None:
            raise ValueError(f"no such command: {line}")
        printed: list[str] = command(plain, options)
        return printed

    def _core(self, node: str) -> Core:
        core = self.cluster.nodes[NodeId(node)].core
        assert core is not None, f"{node} is down"
        return core

    def _do_nodes(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Make the group: NAME, or NAME:KIND[,KIND]. Kinds: witness, hidden, votes0, delayMS, priorityN.

        `part_bytes`: a transaction goes out in parts of so many bytes.
        """
        members = tuple([_member(word) for word in plain])
        config = GroupConfig(group=GROUP, id=ConfigId(0, 1), members=members, w="majority")
        part_bytes = int(options.pop("part_bytes", RAW_BYTES))
        config = msgspec.structs.replace(config, **_settings(options))
        self.cluster = Cluster(1, config=config, options=SHORT, part_bytes=part_bytes)
        self.cluster.over_the_wire = self.cluster.may_be_fatal = True
        return []

    def _do_elect(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Wait until this node is primary; the others stand aside for so long. `alone=1`: it is cut off at that
        moment."""
        (wanted,) = plain
        for node, core in self.cluster.up().items():
            core.freeze(core.mind.now + PATIENCE_MS if node != wanted else 0)
        until = self.cluster.agenda.now + PATIENCE_MS
        while self.cluster.agenda.now < until and not self._core(wanted).accepts_writes:
            self.cluster.run(1 if "alone" in options else 200)
        if "alone" in options:
            self.cluster.network.part([NodeId(wanted)], [node for node in self.cluster.nodes if node != wanted])
        done = self._core(wanted).accepts_writes
        for core in self.cluster.up().values():
            core.freeze(0)
        return [f"{wanted} primary epoch={self._core(wanted).mind.epoch}" if done else f"{wanted} is not elected"]

    def _do_commit(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Commit a text at a node, and wait for `w`."""
        node, text = plain
        if not self._core(node).accepts_writes:
            return [f"not primary, {self._core(node).mind.primary or 'nobody'} is"]
        large = {name: int(options[name]) for name in ("parts", "part_bytes") if name in options}
        number = self.cluster.write(NodeId(node), text.ljust(LONG_ENOUGH), _w(options), _timeout(options), **large)
        return self._answer(number)

    def _do_later(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Commit a text at a node, and wait for nothing."""
        node, text = plain
        number = self.cluster.write(NodeId(node), text.ljust(LONG_ENOUGH), _w(options), _timeout(options))
        self.waiting[text] = number
        return []

    def _do_told(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print what the one was told who committed a text."""
        return self._answer(self.waiting[plain[0]])

    def _do_place(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Give a transaction its place at a node; its text is its name."""
        node, text = plain
        place = self.places[text] = self.cluster.take_place(NodeId(node), text, beside=True)
        assert place.allocation is not None
        return [f"{text} gets {_short(place.allocation.gtid)}"]

    def _do_fill(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Complete a transaction that has its place."""
        (text,) = plain
        return [f"{text}: {self.cluster.fill(self.places[text])}"]

    def _do_open(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Open a large transaction at a node, of so many `parts`; its text is its name."""
        node, text = plain
        self.opened[text] = node, self.cluster.open_large(NodeId(node), text, int(options.get("parts", "3")))
        return []

    def _do_end(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Commit a large transaction that is open, or `abort` it."""
        text, *abort = plain
        node, opened = self.opened[text]
        told = self.cluster.end_large(NodeId(node), opened, abort=bool(abort))
        self.cluster.run(100)
        return [f"{text}: {told}"]

    def _do_chunks(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print how many chunks of open transactions each node has."""
        return [f"{node} {sum(one.open_log.open_spills().values())}" for node, one in self._running()]

    def _do_log(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print each transaction of a log, and what is in it."""
        one = self.cluster.nodes[NodeId(plain[0])]
        told = []
        with one.open_log.log.cursor() as cursor:
            while (transaction := cursor.next()) is not None:
                texts = " ".join([str(getattr(change, "sql", "")) for change in transaction.changes()]).split()
                told.append(f"{_short(transaction.header.gtid)} {' '.join(texts) or 'no-op'}")
        return told

    def _do_saved(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print what a node's rollbacks have saved: rid, seq, GTID, operation."""
        told = []
        for row in self.cluster.nodes[NodeId(plain[0])].saved():
            assert isinstance(row.op, dict)
            text = " ".join(str(row.op.get("statement") or row.op["op"].lower()).split())
            told.append(f"{row.rid},{row.seq} {_short(row.gtid)} {text}")
        return told or ["nothing"]

    def _do_serves(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print who serves reads, and who takes writes."""
        reads = [node for node, core in self.cluster.up().items() if core.serves_reads]
        writes = [node for node, core in self.cluster.up().items() if core.accepts_writes]
        return [f"reads {' '.join(reads) or 'nobody'}, writes {' '.join(writes) or 'nobody'}"]

    def _do_equal(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print whether the logs of all nodes that run are equal, record by record."""
        pictures = [one.picture.rows for _, one in self._running() if one.picture.rows]
        return ["equal" if all(rows == pictures[0] for rows in pictures) else "not equal"]

    def _do_clock(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Set a node's wall clock on by so many ms, or back."""
        self.cluster.nodes[NodeId(plain[0])].clock.wrong_by_ms += int(plain[1])
        return []

    def _do_vote(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Have a node that is down remember a vote of an epoch."""
        one = self.cluster.nodes[NodeId(plain[0])]
        assert one.core is None, f"{plain[0]} is not down"
        one.store_again(msgspec.structs.replace(one.stored, epoch=int(plain[1])))
        return []

    def _do_cut(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Have a node's power go at so many calls of its disk into its next rollback."""
        self.cluster.nodes[NodeId(plain[0])].cut_in_rollback = int(plain[1])
        return []

    def _do_force(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Install at a node, by force, a configuration of these members alone."""
        node, *names = plain
        core = self._core(node)
        members = [one for one in core.config.members if one.name in names]
        core.reconfigure(successor(core.config, members, epoch=core.mind.epoch, forced=True), forced=True)
        self.cluster.run(600)
        return [f"configuration {core.config.id.epoch},{core.config.id.version}"]

    def _do_members(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print the configuration that a node has."""
        config = self._core(plain[0]).config
        return [f"{config.id.epoch},{config.id.version} {' '.join(member.name for member in config.members)}"]

    def _running(self) -> list[tuple[NodeId, SimNode]]:
        return [(node, one) for node, one in self.cluster.nodes.items() if one.core is not None]

    def _do_ask(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Ask a node whether `w` is met for a GTID, EPOCH,SEQNO."""
        node, gtid = plain
        epoch, _, seqno = gtid.partition(",")
        asked = Gtid(int(epoch), int(seqno))  # type: ignore[arg-type]
        return self._answer(self.cluster.ask(NodeId(node), asked, _w(options), _timeout(options)))

    def _answer(self, number: int) -> list[str]:
        self.cluster.run_until(lambda: number in self.cluster.answers, PATIENCE_MS)
        outcome = self.cluster.answers.get(number)
        if outcome is None:
            return ["no answer"]
        to = f" written_to={','.join(outcome.written_to)}" if outcome.written_to else ""
        return [f"{outcome.kind} {outcome.gtid.epoch},{outcome.gtid.seqno}{to}"]

    def _do_partition(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Cut `a b | c d`; `a > b` cuts one way."""
        at = next(at for at, word in enumerate(plain) if word in "|>")
        one, other = (list(map(NodeId, side)) for side in (plain[:at], plain[at + 1 :]))
        self.cluster.network.part(one, other, both=plain[at] == "|")
        return []

    def _do_heal(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Mend all lines, and wait until the group is whole."""
        self.cluster.network.heal()
        return [] if self.cluster.run_until(self.cluster.is_whole, PATIENCE_MS) else ["not whole"]

    def _do_mend(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Mend all lines."""
        self.cluster.network.heal()
        return []

    def _do_crash(self, plain: list[str], options: dict[str, str]) -> list[str]:
        for node in plain:
            self.cluster.crash(NodeId(node), lose=int(options.get("lose", "0")))
        return []

    def _do_start(self, plain: list[str], options: dict[str, str]) -> list[str]:
        for node in plain:
            self.cluster.start(NodeId(node))
        return []

    def _do_wait(self, plain: list[str], options: dict[str, str]) -> list[str]:
        self.cluster.run(int(plain[0]))
        return []

    def _do_handover(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Have a primary step down, for a node or for whoever is best; `force`."""
        node, *more = plain
        force = "force" in more
        to = NodeId(next((one for one in more if one != "force"), NO_NODE))
        self._core(node).hand_over(to, 1000, force=force)
        self.cluster.run(1500)
        return self._do_primary([], {})

    def _do_primary(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Wait for a primary, and say who it is."""
        self.cluster.run_until(lambda: bool(self.cluster.primaries()), int(options.get("within", "4000")))
        told = [f"{node} primary epoch={self._core(node).mind.epoch}" for node in self.cluster.primaries()]
        return told or ["no primary"]

    def _do_freeze(self, plain: list[str], options: dict[str, str]) -> list[str]:
        for node in plain:
            self._core(node).freeze(self._core(node).mind.now + int(options.get("ms", "0")))
        return []

    def _do_maintain(self, plain: list[str], options: dict[str, str]) -> list[str]:
        self._core(plain[0]).maintain(plain[1] == "on")
        return []

    def _do_sync_from(self, plain: list[str], options: dict[str, str]) -> list[str]:
        self._core(plain[0]).sync_from(NodeId(plain[1]))
        return []

    def _do_purge(self, plain: list[str], options: dict[str, str]) -> list[str]:
        self.cluster.purge(NodeId(plain[0]), int(plain[1]), hard="hard" in plain)
        return []

    def _do_remove(self, plain: list[str], options: dict[str, str]) -> list[str]:
        node, *gone = plain
        return self._changed(node, [one for one in self._core(node).config.members if one.name not in gone])

    def _do_add(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Add members, whose nodes start empty, or change them where they are there."""
        node, *words = plain
        new = [_member(word) for word in words]
        for one in new:
            if one.node not in self.cluster.nodes:
                self.cluster.add(one.node, None)
        named = {one.name for one in new}
        kept = [one for one in self._core(node).config.members if one.name not in named]
        return self._changed(node, [*kept, *new])

    def _do_set(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Change settings of the group, NAME=VALUE."""
        (node,) = plain
        return self._changed(node, list(self._core(node).config.members), **_settings(options))

    def _changed(self, node: str, members: list[Member], **settings: object) -> list[str]:
        core = self._core(node)
        old = msgspec.structs.replace(core.config, **settings)
        try:
            refused = core.reconfigure(successor(old, members, epoch=core.mind.epoch))
        except ConfigError as exc:
            return [str(exc)]
        self.cluster.run(600)
        return [f"refused: {refused}" if refused else f"configuration {core.config.id.epoch},{core.config.id.version}"]

    def _do_status(self, plain: list[str], options: dict[str, str]) -> list[str]:
        """Print each node's state, epoch, last and committed GTID, and what it rolled back."""
        told = []
        for node, one in self.cluster.nodes.items():
            if one.core is None:
                told.append(f"{node} down")
                continue
            mind, log = one.core.mind, one.picture
            text = f"{node} {STATE_NAMES[mind.state].lower()} epoch={mind.epoch} last={log.last.epoch},{log.last.seqno}"
            text += f" committed={mind.committed.seqno}" + (f" first={log.first}" if log.first else "")
            saved = [row.gtid for row in one.saved()]
            told.append(text + (f" rolled_back={','.join(f'{g.epoch}.{g.seqno}' for g in saved)}" if saved else ""))
        return told


def _short(gtid: Gtid) -> str:
    return f"{gtid.epoch},{gtid.seqno}"


def _member(word: str) -> Member:
    name, _, kinds = word.partition(":")
    member = Member(node=NodeId(name), name=name)
    for kind in filter(None, kinds.split(",")):
        change: dict[str, object] = {"priority": 0}
        if kind.startswith("priority"):
            change = {"priority": int(kind.removeprefix("priority"))}
        elif kind.startswith("delay"):
            change |= {"delay_ms": int(kind.removeprefix("delay"))}
        elif kind == "votes0":
            change |= {"votes": 0}
        elif kind.startswith("at-"):
            change = {"tags": {"site": kind.removeprefix("at-")}}
        else:
            change |= {kind: True}
        member = msgspec.structs.replace(member, **change)
    return member


def _settings(options: dict[str, str]) -> dict[str, object]:
    """Return the fields of a configuration; `sites=N` is the tag rule of that name: N sites, 0 for no rule."""
    given = {name: text for name, text in options.items() if name != "sites"}
    found: dict[str, object] = {name: int(text) if text.isdigit() else text for name, text in given.items()}
    if "chaining" in found:
        found["chaining"] = bool(found["chaining"])
    if "sites" in options:
        found["rules"] = {"sites": {"site": int(options["sites"])}} if int(options["sites"]) else {}
    return found


def _w(options: dict[str, str]) -> int | str | None:
    text = options.get("w", "majority")
    return None if text == "default" else int(text) if text.isdigit() else text


def _timeout(options: dict[str, str]) -> int | None:
    text = options.get("timeout", "0")
    return None if text == "default" else int(text)
