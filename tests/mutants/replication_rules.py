"""Mutants of the rules of replication: each takes one out.

Source: docs/protocol.md, "Elections"; conformance/tokumx.md, parts B and C.
"""

from __future__ import annotations

from mutants.rewriting import Edit, Mutant

RULES = "tranlog.replication.rules."


def _mutant(name: str, what: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name=name, what=what, edits=tuple([Edit(module=m, old=old, new=new) for m, old, new in edits]))


REPLICATION = (
    _mutant(
        "no-ack-gate",
        "a node acks to a primary of an older epoch than its vote",
        (RULES + "acks", "return primary_epoch >= own_epoch", "return True"),
    ),
    _mutant(
        "vote-without-log",
        "a vote does not look at the logs",
        (RULES + "election", "if voter.last is not None and request.last < voter.last:", "if False:"),
    ),
    _mutant(
        "vote-not-durable",
        "a vote is told and not stored",
        (
            RULES + "reign",
            "            self._persist(epoch=request.epoch, candidate=candidate)\n",
            "            self.stored = msgspec.structs.replace(stored, epoch=request.epoch, candidate=candidate)\n",
        ),
    ),
    _mutant(
        "own-vote-not-durable",
        "a candidate's own vote is not stored",
        (
            RULES + "reign",
            "        self._persist(epoch=mind.epoch, candidate=self.node)\n",
            "        self.stored = msgspec.structs.replace(self.stored, epoch=mind.epoch, candidate=self.node)\n",
        ),
    ),
    _mutant(
        "vote-kept-in-memory",
        "no vote gets into the node's file",
        (
            "tranlog.replication.acting.state",
            "raw = slot_bytes(stored, self._number)",
            "raw = slot_bytes(__import__('msgspec').structs.replace(stored, epoch=0, candidate=''), self._number)",
        ),
    ),
    _mutant(
        "two-votes-an-epoch",
        "a second candidate gets a vote of the same epoch",
        (
            RULES + "election",
            "if request.epoch <= voter.voted_epoch and not (",
            "if request.epoch < voter.voted_epoch and not (",
        ),
    ),
    _mutant(
        "vote-while-primary",
        "a primary votes",
        (RULES + "election", "if voter.state == PRIMARY:", "if False:"),
        (RULES + "election", "if voter.hears_primary and", "if voter.hears_primary and voter.state != PRIMARY and"),
    ),
    _mutant(
        "ack-before-sync",
        "an ack names the end of the log, durable or not",
        (RULES + "core", "Ack(durable=log.durable, epoch", "Ack(durable=log.last, epoch"),
    ),
    _mutant(
        "commit-of-an-older-epoch",
        "a majority of copies commits a record of any epoch",
        (RULES + "acks", "return reached if reached.epoch == epoch else NO_GTID", "return reached"),
    ),
    _mutant(
        "majority-of-data-only",
        "half of the voters with data plus one is called a majority",
        (
            RULES + "config",
            "return min(len(config.voters) // 2 + 1, len(config.copies))",
            "return len(config.copies) // 2 + 1",
        ),
    ),
    _mutant(
        "one-ack-too-few",
        "a majority of copies has one less",
        (
            RULES + "config",
            "return min(len(config.voters) // 2 + 1, len(config.copies))",
            "return min(len(config.voters) // 2 + 1, len(config.copies)) - (len(config.copies) > 2)",
        ),
    ),
    _mutant(
        "witness-is-a-copy",
        "a witness counts as a durable copy",
        (
            RULES + "acks",
            "[durable.get(node, NO_GTID) for node in config.copies]",
            "[durable.get(node, NO_GTID) for node in config.copies]"
            " + [max(durable.values())] * (len(config.voters) - len(config.copies))",
        ),
    ),
    _mutant(
        "acks-kept",
        "acks outlive the reign in which they came",
        (
            RULES + "reign",
            "mind.campaign, mind.acks, mind.waiting, mind.waited = None, {}, [], False",
            "mind.campaign, mind.waiting, mind.waited = None, [], False",
        ),
        (RULES + "beats", "        mind.acks = {}\n", ""),
    ),
    _mutant(
        "commit-by-number",
        "a commit point is taken where a log holds that seqno, whatever the transaction",
        (
            RULES + "beats",
            "self.mind.committed < committed and holds(self.log, committed):",
            "self.mind.committed < committed and self.log.gtid(committed.seqno) is not None:",
        ),
    ),
    _mutant(
        "matchpoint-by-number",
        "two logs match where they hold the same seqno",
        (RULES + "syncup", "return log.gtid(gtid.seqno) == gtid", "return log.gtid(gtid.seqno) is not None"),
        (RULES + "syncup", "if log.h(found.seqno) != here.h:", "if False:"),
    ),
    _mutant(
        "configuration-without-waiting",
        "a configuration is followed by the next at once",
        (RULES + "config", "if len(set(installed) & set(old.voters)) < election_majority(old):", "if False:"),
        (RULES + "config", "    if not committed:\n", "    if False:\n"),
        (RULES + "config", "    if not copied:\n", "    if False:\n"),
    ),
    _mutant(
        "commit-before-installed",
        "a configuration commits before a majority has it",
        (RULES + "core", "if point > mind.committed and self._is_installed():", "if point > mind.committed:"),
    ),
    _mutant(
        "two-voters-at-once",
        "a configuration changes any number of voters",
        (RULES + "config", "if voters_changed(old, new) > 1:", "if False:"),
    ),
    _mutant(
        "wiped-node-under-its-old-id",
        "a node that lost its vote comes back as itself",
        (
            "sim.swarm",
            "        self.cluster.add(new, None)\n        self._wiped[node] = new\n",
            "        self.cluster.add(node, config)\n",
        ),
        (
            "sim.swarm",
            "        del self.cluster.nodes[node]\n",
            "        config = self.cluster.nodes.pop(node).stored.config\n",
        ),
    ),
    _mutant(
        "votes-while-its-log-is-gone",
        "a node whose disk lost what was durable votes",
        (RULES + "election", "if voter.owing or voter.state == RESTORING:", "if False:"),
    ),
    _mutant(
        "mark-before-saving",
        "a rollback abandons before what goes is saved",
        (RULES + "syncup", "ROLLBACK_STEPS = (SAVE, MARK)", "ROLLBACK_STEPS = (MARK, SAVE)"),
    ),
    _mutant(
        "no-pre-vote-no-check-quorum",
        "a node stands without asking, and a primary stays one while it hears nobody",
        (
            RULES + "reign",
            "mind.campaign = Campaign(mind.epoch + 1, True, mind.now, {self.node})",
            "return self._request_votes()",
        ),
        (RULES + "beats", "if self.mind.state == PRIMARY and not self._has_quorum():", "if False:"),
    ),
)
"""In the order of the rules."""
