"""The numbers of a running process for Prometheus.

Owns their names; docs/control.md has what they were called before, and which numbers of a status are not here. They
are those of `status`, from the same model; prometheus-client has the text formats. The hard idea: nothing is counted
here, so a number cannot differ from what a status shows, and is lost by no restart.

Source: OpenMetrics 1.0; Prometheus, "Metric and label naming".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily

from tranlog.capture.capture import CaptureStatus
from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.status.status import LogState, Status, WaitsFor, at
from tranlog.queues.standing import StoreStatus
from tranlog.replication.acting.orders import NodeStatus
from tranlog.replication.rules.packets import STATE_NAMES
from tranlog.service.show.overview import TIMES
from tranlog.source.kinds import SourceStanding

Sample = tuple[Mapping[str, str], float | None]

# Each line: a family's name, where its value stands in a model, its help. A value in ms or us is told in seconds.
_OF_STATUS: Final = """
uptime_seconds uptime_ms Since the process started.
in_state_seconds in_state_ms Since it is in this state.
slots process.slots How many channels Spark can run at a time.
serialized pipeline.serialized Whether a serial section runs.
head_seqno pipeline.head_seqno The position of the channel that is furthest ahead.
restart_seqno pipeline.restart_seqno The least position: everything up to there is in the target.
stop_at_seqno pipeline.row.stop_at_seqno Up to where the channels are told to go; -1: to end where they are.
newest_applied_latency_seconds pipeline.newest_latency_ms From the source's commit to the target's, of the newest one.
relative_latency_seconds relative_latency_ms How long ago the least position was committed at the source.
offline_interval_seconds pipeline.offline_interval_ms How far the channels are apart, in the source's commit times.
"""
_OF_LOG: Final = """
log_first_seqno first_seqno The first seqno that the log holds.
log_last_seqno last_seqno The last seqno that the log holds.
log_committed_seqno committed_seqno Up to where the log may be applied.
log_epoch epoch The epoch of its last transaction.
log_segments segments How many segments it has.
log_size_bytes size_bytes How long they are together.
log_active_seqno active_seqno The first that somebody still needs; -1: nobody.
"""
_OF_LAG: Final = """
lag_transactions seqnos Committed transactions that are not all applied; no sample: no position is known.
lag_seconds ms How long ago the first of them was committed.
"""
_OF_CHANNEL: Final = """
applied_seqno row.applied_seqno Up to where a channel has everything of its own in the target.
applied_epoch row.epoch The epoch of that position.
applied_commit_timestamp_seconds row.tstamp When that position was committed at the source; 0: nothing is applied.
position_moved_timestamp_seconds row.updated_at When that position was written, by the target's clock.
counted_from_seqno stats.since The first seqno that a channel's counters know.
applied_latency_seconds stats.latency_ms From the source's commit to the target's, of the last transaction applied.
last_block_transactions stats.block Transactions of the last target transaction.
last_block_seconds stats.block_us What it took.
in_flight_seqno in_flight.seqno The large transaction that a channel is in; no sample: none.
in_flight_changes in_flight.changes How many of its changes went to the target so far.
in_flight_read_bytes in_flight.read_bytes How many of its bytes are read.
in_flight_size_bytes in_flight.size_bytes Of how many.
in_flight_began_timestamp_seconds in_flight.began_at When the attempt at it began.
"""
_COUNTERS: Final = """
transactions counters.transactions Transactions applied.
changes counters.changes Row changes applied.
target_transactions counters.groups Target transactions with rows.
serial_transactions counters.serial Transactions applied alone.
serial_sections counters.sections Serial sections: runs of such transactions.
depended_transactions counters.depended Transactions that depended on one of another channel, by write sets.
held_transactions counters.held Of these, those that waited for it.
missed_dependencies counters.missed Conflicts that were gone when the other channels had come, by write sets.
discarded_transactions counters.skipped Other channels' transactions passed.
omitted_transactions counters.omitted Transactions that the operator had left out.
filtered_transactions counters.filtered Transactions that filters left nothing of.
meetings counters.waits Meetings that were waited for.
meeting_seconds counters.wait_ms What those meetings took, from the first look to the last.
retries counters.retries Reconnects to the target.
payload_bytes counters.bytes Payload applied.
"""
_OF_SHARD: Final = """
shard_applied_seqno count.applied_seqno The last transaction applied of a shard.
shard_applied_latency_seconds count.latency_ms From the source's commit to the target's, of that one.
"""
_SHARD_COUNTERS: Final = """
shard_transactions count.transactions Transactions applied of a shard, as long as its channel tells it apart.
"""
_OF_CAPTURE: Final = """
capture_last_seqno last_seqno The last transaction that this process has captured; -1: none.
capture_lag_seconds lag_ms From the last transaction's commit at the source until it was durable in the log.
capture_in_flight_changes in_flight.changes Changes captured of the large transaction that is read; no sample: none.
capture_in_flight_read_bytes in_flight.read_bytes How many of its bytes are in the log.
capture_in_flight_began_timestamp_seconds in_flight.began_at When it began.
"""
_CAPTURE_COUNTERS: Final = """
capture_transactions transactions Transactions that this process has captured.
capture_fragments fragments Fragments that this process has captured.
capture_payload_bytes payload_bytes Payload that this process has captured.
capture_syncs syncs Syncs of the log for them.
"""
_OF_SOURCE: Final = """
source_waiting_transactions waiting Transactions that are not captured.
source_retained_bytes retained_bytes What the source keeps for the capture.
"""
_OF_STORE: Final = """
store_containers_in_use containers_in_use Containers in which messages or transactions stand.
store_containers_free containers_free Containers to be used again.
store_container_size_bytes container_bytes How large each of them is.
store_pinned_bytes pinned_bytes Of the containers that what cannot be moved holds back.
store_transient_messages transient_messages Messages that are in memory alone.
store_transient_bytes transient_bytes Memory that they take.
"""
_STORE_COUNTERS: Final = """
store_syncs syncs Syncs of the store's containers since it was opened.
"""
_OF_NODE: Final = """
node_epoch epoch The last epoch that the node knows of.
node_first_seqno first_seqno The first seqno that its log holds.
node_last_seqno last.seqno The last seqno that its log holds.
node_durable_seqno durable.seqno Up to where its log is synced.
node_committed_seqno committed.seqno Up to where the group has committed, as far as the node knows.
"""
_OF_MEMBER: Final = """
group_member_last_seqno last.seqno Where a member's log ends, as this node has heard.
group_member_acked_seqno acked.seqno What a member has durable, as a primary knows.
group_member_heard_seconds heard_ms Since the member was heard; no sample: never.
"""
_OF_QUEUE: Final = """
queue_waiting_messages waiting Messages that wait on a queue.
queue_held_messages held Messages that were handed out and are not answered.
queue_oldest_age_seconds oldest_ms The age of the first message that waits; no sample: none does.
"""
_QUEUE_COUNTERS: Final = """
queue_published_messages counts.published Messages put on a queue since the store was opened.
queue_delivered_messages counts.delivered Messages handed out.
queue_acknowledged_messages counts.acknowledged Messages that were acknowledged.
queue_requeued_messages counts.requeued Messages that came back.
queue_dropped_messages counts.dropped Messages that left it rejected, expired or purged.
"""
_PER_SECOND: Final = {"ms": 1e3, "us": 1e6, "tstamp": 1e3, "at": 1e3}
"""By the last word of a field's name."""


def pipeline_families(status: Status) -> Iterator[Metric]:
    """Return the families of a status with a log; latencies are there once something is applied.

    Where the target does not answer, those of process and log are told.
    """
    process, pipeline = status.process, status.pipeline
    assert process is not None and status.log is not None
    name = {"pipeline": process.pipeline}
    gauge = partial(_family, GaugeMetricFamily)
    yield _states("tranlog_state", "Where the pipeline stands.", name, State, process.state)
    yield _states("tranlog_waits_for", "What keeps it from going on.", name, WaitsFor, status.waits_for)
    yield from _table(_OF_STATUS, [(name, status)])
    yield gauge("target_up", "Whether the target answers.", [(name, pipeline is not None)])
    pending = NO_SEQNO if process.pending is None else process.pending.seqno
    yield gauge("pending_error_seqno", "Of the error which took it offline; -1: none.", [(name, pending)])
    yield gauge(
        "trouble_since_timestamp_seconds",
        "Since when a channel cannot use the target, -1 for the driver; no sample: it can.",
        [({**name, "channel": str(one.channel)}, one.since_ms / 1000) for one in process.troubles],
    )
    yield from log_families(status.log, name)
    if pipeline is None:
        return
    yield gauge("channels", "How many channels apply.", [(name, len(pipeline.channels))])
    epoch = -1 if pipeline.reached is None else pipeline.reached.row.epoch
    yield gauge("restart_epoch", "The epoch of the restart seqno; -1: nothing is applied.", [(name, epoch)])
    yield from _table(_OF_LAG, [(name, pipeline.lag)] if pipeline.lag is not None and pipeline.channels else [])
    channels = [({**name, "channel": str(one.row.channel)}, one) for one in pipeline.channels]
    yield from _table(_OF_CHANNEL, channels)
    yield from _table(_COUNTERS, channels, CounterMetricFamily)
    yield gauge(
        "waits_for_seqno",
        "The seqno that a channel waits for another to apply; no sample: it waits for nobody.",
        [
            ({**labels, "waits_for": str(other), "serial": str(one.waiting.serial).lower()}, one.waiting.seqno)
            for labels, one in channels
            if one.waiting is not None
            for other in one.waiting.channels
        ],
    )
    times = [
        ({**labels, "on": "extract" if on == "read" else on}, at(one.counters, f"{on}_us") / 1e6)
        for labels, one in channels
        for on in TIMES
    ]
    yield _family(CounterMetricFamily, "time_seconds", "Where a channel's time went.", times)
    shards = [({**name, "shard": one.shard, "channel": str(one.channel)}, one) for one in pipeline.shards]
    yield from _table(_OF_SHARD, shards)
    yield from _table(_SHARD_COUNTERS, shards, CounterMetricFamily)


def log_families(log: LogState, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Return the families of a log."""
    yield from _table(_OF_LOG, [(labels, log)])
    holds = [({**labels, "hold": one.name}, one.restart_seqno) for one in log.holds]
    yield _family(GaugeMetricFamily, "log_hold_seqno", "From where on somebody still needs it.", holds)


def capture_families(
    status: CaptureStatus, log: LogState, source: SourceStanding | None, *, asked: bool, now_ms: int
) -> Iterator[Metric]:
    """Return the families of a capture and its source; `asked`: the source was, and `source` None is no answer."""
    labels = {"source_id": status.source_id}
    gauge = partial(_family, GaugeMetricFamily)
    yield from _table(_OF_CAPTURE, [(labels, status)])
    yield from _table(_CAPTURE_COUNTERS, [(labels, status)], CounterMetricFamily)
    if asked:
        yield gauge("source_up", "Whether the source answers.", [(labels, source is not None)])
    if source is not None:
        all_captured = source.now_at in ("", log.last_event_id) and not source.waiting
        late = 0.0 if all_captured or log.last_tstamp is None else max(0, now_ms - log.last_tstamp) / 1000
        why = "How long ago the log's last transaction was committed, while the source has more; 0: it has none."
        yield gauge("source_lag_seconds", why, [(labels, late)])
        yield from _table(_OF_SOURCE, [(labels, source)])


def node_families(status: NodeStatus) -> Iterator[Metric]:
    """Return the families of a node of a group."""
    of_node = {"group": status.group, "node": status.name}
    yield _states("tranlog_node_state", "What the node is in its group.", of_node, STATE_NAMES, status.state)
    yield from _table(_OF_NODE, [(of_node, status)])
    yield from _table(_OF_MEMBER, [({**of_node, "member": one.name}, one) for one in status.members])


def store_families(status: StoreStatus, path: str) -> Iterator[Metric]:
    """Return the families of a message store that is open."""
    of_store = {"store": path}
    yield from _table(_OF_STORE, [(of_store, status)])
    yield from _table(_STORE_COUNTERS, [(of_store, status)], CounterMetricFamily)
    doubt = [(of_store, float(len(status.in_doubt)))]
    yield _family(GaugeMetricFamily, "store_in_doubt_transactions", "Prepared transactions without outcome.", doubt)
    queues = [({**of_store, "queue": name}, one) for name, one in status.queues.items()]
    yield from _table(_OF_QUEUE, queues)
    yield from _table(_QUEUE_COUNTERS, queues, CounterMetricFamily)


def _table(
    table: str,
    models: Sequence[tuple[Mapping[str, str], object]],
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily,
) -> Iterator[Metric]:
    """Return the families of a table, each with a sample of every model that tells it."""
    for line in table.strip().splitlines():
        name, path, text = line.split(" ", 2)
        per = _PER_SECOND.get(path.rpartition(".")[2].rpartition("_")[2], 1)
        found = [(labels, at(model, path)) for labels, model in models]
        yield _family(kind, name, text, [(labels, value and value / per) for labels, value in found])


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, text: str, samples: Iterable[Sample]
) -> Metric:
    """Return a family; what is not known has no sample."""
    unit = name.rpartition("_")[2]
    family = kind(f"tranlog_{name}", text, unit=unit if unit in ("seconds", "bytes") else "")
    for labels, value in samples:
        if value is not None:
            suffix = "_total" if kind is CounterMetricFamily else ""
            family.add_sample(family.name + suffix, dict(labels), value)
    return family


def _states(name: str, text: str, labels: Mapping[str, str], states: Iterable[str], now: str) -> Metric:
    family = StateSetMetricFamily(name, text, labels=[*labels])
    family.add_metric([*labels.values()], {str(one): one == now for one in states})
    return family
