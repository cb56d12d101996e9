"""The mutants of the message store: each takes away one rule of its log, its recovery, or its base.

`QUEUES` says of each which test finds it; `tests/crash/test_queue_mutants.py` holds them to that.
"""

from __future__ import annotations

from mutants.rewriting import Edit, Mutant


def _mutant(name: str, what: str, module: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, what=what, edits=(Edit(module=f"tranlog.queues.{module}", old=old, new=new),))


_ROW = "tests/crash/test_queue_matrix.py::test_each_row_of_the_crash_matrix"
_LIFE = "tests/crash/test_queue_crash.py::test_a_cut_at_every_call_of_a_life_loses_nothing"
_LOG = "tests/queues/test_recovery.py"

QUEUES = {
    _mutant(
        "queue-tail-not-zeroed",
        "an opening leaves what it cut off behind the log's end",
        "files.recovering",
        "            file.pwrite(bytes(len(behind)), end)\n",
        "            pass\n",
    ): "tests/crash/test_queue_crash.py::test_what_was_cut_off_once_is_not_found_again",
    _mutant(
        "queue-no-sync-after-catalogue",
        "no Sync record stands before the first record after a change to the catalogue",
        "core",
        "            self.journal.sync_due = True\n",
        "",
    ): "tests/queues/test_store.py::test_the_log_says_of_each_change_to_the_catalogue_before_it_goes_on",
    _mutant(
        "queue-open-is-committed",
        "a transaction without outcome is committed by recovery",
        "rules.state",
        "        for transaction in found:\n            self.roll_back(transaction)\n",
        "        for transaction in found:\n            self.commit(transaction, transaction)\n",
    ): f"{_ROW}[recovery's own Delete / Abort writes]",
    _mutant(
        "queue-prepared-is-rolled-back",
        "a prepared branch is rolled back by recovery",
        "rules.state",
        "for one in self.transactions.values() if not one.prepared]",
        "for one in self.transactions.values()]",
    ): f"{_ROW}[Dtx-Start up to Prepare]",
    _mutant(
        "queue-unknown-queue-is-kept",
        "recovery keeps places on queues that the catalogue does not have",
        "files.recovering",
        "dropped = state.drop_unknown({queue.id for queue in self._catalogue.queues.values()})",
        "dropped: list[tuple[Message, int]] = []",
    ): f"{_ROW}[SQL delete queue]",
    _mutant(
        "queue-homeless-is-kept",
        "recovery does not delete what is on no queue",
        "files.recovering",
        "        homeless = state.homeless()\n",
        "        homeless: list[Message] = []\n",
    ): f"{_ROW}[Chunk k (last), no Enqueue]",
    _mutant(
        "queue-run-without-checksum",
        "groups that are read at once are not held against their checksums",
        "rules.runs",
        " != expected & _U32:",
        " == -1:",
    ): f"{_LOG}::test_a_bad_byte_below_a_proof_is_damage[single]",
    _mutant(
        "queue-group-in-parts",
        "a record counts without the rest of its group",
        "rules.recovery",
        "        if record.flags & LAST:\n",
        "        if self._group:\n            self.state.apply(*self._group.pop())\n        if record.flags & LAST:\n",
    ): f"{_LOG}::test_each_byte_at_which_a_log_is_cut_leaves_whole_groups[fan_out]",
    _mutant(
        "queue-position-not-carried",
        "a container does not begin with the positions of the producers",
        "files.journal",
        "encode_checkpoint(durable, now_ms, self.counter, positions)",
        "encode_checkpoint(durable, now_ms, self.counter, {})",
    ): "tests/queues/test_store.py::test_a_producer_keeps_its_number_when_its_messages_are_gone",
    _mutant(
        "queue-own-place-not-checked",
        "a record counts at another place than its own",
        "rules.records",
        "    if place != number << 32 | start + offset:\n",
        "    if place < 0:\n",
    ): f"{_LOG}::test_a_former_use_of_the_container_is_no_part_of_the_log",
    _mutant(
        "queue-epoch-not-checked",
        "a record of a lower epoch counts behind one of a higher",
        "rules.records",
        "    if its_epoch < epoch:\n",
        "    if its_epoch < 0:\n",
    ): f"{_LOG}::test_a_record_behind_a_cut_is_not_taken_up_again",
    _mutant(
        "queue-told-before-sync",
        "a call that waits returns before the sync",
        "definitions",
        "        self._journal.commit()\n",
        "        self._journal.check_open()\n",
    ): _LIFE,
    _mutant(
        "queue-published-before-sync",
        "a publish that waits returns before the sync",
        "publishing",
        "            core.journal.commits.wait(turn, target)\n",
        "",
    ): _LIFE,
    _mutant(
        "queue-base-of-a-later-moment",
        "the base is taken after the sync that is to make it true, not before",
        "files.journal",
        "        if self.files.in_use[0] < self._needed:\n            self.give_back(self._needed)\n",
        "        self.give_back(self._state.lowest(self.buffer.number))\n",
    ): "tests/queues/test_store_defects.py::test_8_a_sync_gives_back_no_container_that_a_later_record_set_free",
    _mutant(
        "queue-base-passes-undecided",
        "a transaction without outcome does not hold the base",
        "rules.state",
        "QueueTransaction(place, xid, started=True)\n        self._hold(place)\n",
        "QueueTransaction(place, xid)\n",
    ): _LIFE,
    _mutant(
        "queue-base-passes-what-is-being-written",
        "a message that is on no queue yet does not hold the base",
        "rules.state",
        "        return next(iter(self.live), otherwise)",
        "        placed = (one.stands >> 32 for one in self.messages.values() if one.places)\n"
        "        started = (one.id >> 32 for one in self.transactions.values() if one.started)\n"
        "        return min((*placed, *started), default=otherwise)",
    ): "tests/queues/test_store_defects.py::test_8_a_message_that_is_being_written_holds_its_container",
    _mutant(
        "queue-move-loses-its-place",
        "a message that is moved forward stands behind the others of its queue",
        "moving",
        "MOVE_PLACE.pack(one.queue_id, one.visible, one.enqueued,",
        "MOVE_PLACE.pack(one.queue_id, journal.place, one.enqueued,",
    ): _LIFE,
    _mutant(
        "queue-put-back-at-once",
        "what a rollback put back is handed out before that is durable",
        "waiting",
        " and (not self._since or self._since.get(place, NO_LSN) < shown)\n",
        "\n",
    ): "tests/queues/test_transaction.py::test_what_a_rollback_put_back_is_handed_out_once_that_is_durable",
    _mutant(
        "queue-outcome-counts-publishes",
        "Prepare reserves room for each publish, not for each of its queues",
        "transaction",
        "sum(len(one.queues) for one in self.publishes)",
        "len(self.publishes)",
    ): "tests/queues/test_transaction.py::test_what_is_reserved_for_an_outcome_is_what_it_gives_back",
}
"""By mutant the test that finds it, or one of its cases."""
