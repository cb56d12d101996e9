"""The numbers of a running pipeline as OpenMetrics, over HTTP.

Owns their names and the small server. The numbers are those of `status`, from the same dataclasses and the same rows;
docs/control.md names the few that are not here. The hard idea: a scrape reads the target by a connection of its own,
one scrape at a time, so whoever asks too often waits for himself and not for the channels.

Source: issue 7, item 6; OpenMetrics 1.0.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tranlog.errors import ConfigError, TranlogError
from tranlog.pipeline.rules.progress import Counters, Lag
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.status.view import (
    LogFacts,
    PipelineFacts,
    PipelineStatus,
    ProcessFacts,
    pipeline_status,
    waits_of,
)
from tranlog.service.config.exposure import Exposure, check_exposure

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TIMES: Final = {
    "extract": "extractTime",
    "filter": "filterTime",
    "apply": "applyTime",
    "commit": "commitTime",
    "wait": "waitTime",
    "idle": "idleTime",
    "other": "otherTime",
}
_COUNTERS: Final = (
    ("tranlog_transactions", "Transactions applied.", "transactions"),
    ("tranlog_changes", "Row changes applied.", "changes"),
    ("tranlog_target_transactions", "Target transactions with rows.", "groups"),
    ("tranlog_serial_transactions", "Transactions applied alone.", "serial"),
    ("tranlog_serial_sections", "Serial sections: runs of such transactions.", "sections"),
    ("tranlog_discarded", "Other channels' transactions passed.", "skipped"),
    ("tranlog_omitted", "Transactions that the operator had left out.", "omitted"),
    ("tranlog_filtered", "Transactions that filters left nothing of.", "filtered"),
    ("tranlog_meetings", "Meetings that were waited for.", "waits"),
    ("tranlog_retries", "Reconnects to the target.", "retries"),
)
"""Families that are counters of each channel: name, text, and the field of Counters."""
_IN_FLIGHT: Final = {
    "seqno": "The large transaction that a channel is in; no sample: none.",
    "changes": "How many of its changes went to the target so far.",
    "read_bytes": "How many of its bytes are read.",
    "size_bytes": "Of how many.",
}
"""What is told of a large transaction: the fields of InFlight."""
_IDLE_S: Final = 10.0

Sample = tuple[Mapping[str, str], float | int]


def metrics_text(process: ProcessFacts, *, log: LogFacts, pipeline: PipelineFacts, behind: Lag) -> str:
    """Return the exposition: what `pipeline_status` shows of the same facts, and how far behind it is. Pure.

    Rates are there while the pipeline runs and was watched, latencies as soon as something was applied.
    """
    status = pipeline_status(log, pipeline, process)
    name = {"pipeline": pipeline.pipeline}
    lines = [
        *_stateset("tranlog_state", "Where the pipeline stands.", name, process.state),
        *_whole(status, name, pipeline, behind, process),
        *_of_log(log, status, name),
        *_of_channels(status, name, pipeline),
        *_of_shards(status, name),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _whole(
    status: PipelineStatus, name: Mapping[str, str], facts: PipelineFacts, behind: Lag, process: ProcessFacts
) -> Iterator[str]:
    one, queue = status.pipeline, status.queue
    yield from _gauge("tranlog_uptime_seconds", "Since the process started.", [(name, one.uptimeSeconds)])
    yield from _gauge("tranlog_in_state_seconds", "Since it is in this state.", [(name, one.timeInStateSeconds)])
    yield from _gauge(
        "tranlog_pending_error_seqno",
        "The seqno that the error which took it offline is about; -1: none.",
        [(name, one.pendingErrorSeqno)],
    )
    yield from _gauge("tranlog_slots", "How many channels Spark can run at a time.", [(name, process.slots)])
    yield from _gauge(
        "tranlog_trouble_since_timestamp_seconds",
        "Since when a channel cannot use the target, -1 for the driver; no sample: it can.",
        [({**name, "channel": str(one.channel)}, one.since_ms / 1000) for one in process.troubles],
    )
    yield from _gauge("tranlog_channels", "How many channels apply.", [(name, queue.queues)])
    yield from _gauge("tranlog_serialized", "Whether a serial section runs.", [(name, int(queue.serialized))])
    yield from _gauge(
        "tranlog_head_seqno", "The position of the channel that is furthest ahead.", [(name, queue.headSeqno)]
    )
    yield from _gauge(
        "tranlog_restart_seqno",
        "The least of the channels' positions: everything up to there is in the target.",
        [(name, one.appliedLastSeqno)],
    )
    yield from _gauge(
        "tranlog_restart_epoch", "The epoch of that position; -1: nothing is applied.", [(name, one.latestEpochNumber)]
    )
    stop = None if facts.row is None else facts.row.stop_at_seqno
    yield from _gauge(
        "tranlog_stop_at_seqno",
        "Up to where the channels are told to go; -1: to end where they are.",
        [] if stop is None else [(name, stop)],
    )
    yield from _gauge(
        "tranlog_lag_transactions", "Committed transactions that are not all applied.", [(name, behind.seqnos)]
    )
    yield from _gauge(
        "tranlog_lag_seconds", "How long ago the first of them was committed.", [(name, behind.ms / 1000)]
    )
    if one.appliedLatency >= 0:
        yield from _gauge(
            "tranlog_newest_applied_latency_seconds",
            "From the source's commit to the target's, of the newest transaction applied.",
            [(name, one.appliedLatency)],
        )
    if one.relativeLatency >= 0:
        yield from _gauge(
            "tranlog_relative_latency_seconds",
            "How long ago the least position was committed at the source.",
            [(name, one.relativeLatency)],
        )
    yield from _gauge(
        "tranlog_offline_interval_seconds",
        "How far the channels are apart, in the source's commit times.",
        [(name, queue.estimatedOfflineInterval)],
    )


def _of_log(log: LogFacts, status: PipelineStatus, name: Mapping[str, str]) -> Iterator[str]:
    assert status.log is not None
    yield from _gauge("tranlog_log_first_seqno", "The first seqno that the log holds.", [(name, log.first_seqno)])
    yield from _gauge("tranlog_log_last_seqno", "The last seqno that the log holds.", [(name, log.last_seqno)])
    yield from _gauge(
        "tranlog_log_committed_seqno", "Up to where the log may be applied.", [(name, log.committed_seqno)]
    )
    yield from _gauge("tranlog_log_epoch", "The epoch of its last transaction.", [(name, log.epoch)])
    yield from _gauge("tranlog_log_segments", "How many segments it has.", [(name, log.segments)])
    yield from _gauge("tranlog_log_size_bytes", "How long they are together.", [(name, log.bytes)])
    yield from _gauge(
        "tranlog_log_active_seqno", "The first that somebody still needs; -1: nobody.", [(name, status.log.activeSeqno)]
    )
    yield from _gauge(
        "tranlog_log_hold_seqno",
        "From where on somebody still needs it.",
        [({**name, "hold": who}, seqno) for who, seqno in log.holds.items() if seqno is not None],
    )


def _of_channels(status: PipelineStatus, name: Mapping[str, str], facts: PipelineFacts) -> Iterator[str]:
    def each(values: Iterable[tuple[int, float | int]]) -> list[Sample]:
        return [({**name, "channel": str(channel)}, value) for channel, value in values]

    tasks, rows = status.tasks, facts.channels
    counters = [(row.channel, Counters.parse(row.stats)) for row in rows]
    yield from _gauge(
        "tranlog_applied_seqno",
        "Up to where a channel has everything of its own in the target.",
        each((one.taskId, one.appliedLastSeqno) for one in tasks),
    )
    yield from _gauge("tranlog_applied_epoch", "The epoch of that position.", each((r.channel, r.epoch) for r in rows))
    yield from _gauge(
        "tranlog_applied_commit_timestamp_seconds",
        "When that position was committed at the source; 0: nothing is applied.",
        each((row.channel, row.tstamp / 1000) for row in rows),
    )
    yield from _gauge(
        "tranlog_position_moved_timestamp_seconds",
        "When that position was written, by the target's clock.",
        each((row.channel, row.updated_at / 1000) for row in rows),
    )
    yield from _gauge(
        "tranlog_counted_from_seqno",
        "The first seqno that a channel's counters know.",
        each((one.task_id, one.lo_seqno) for one in status.queue.stores),
    )
    yield from _gauge(
        "tranlog_applied_latency_seconds",
        "From the source's commit to the target's, of the last transaction applied.",
        each((one.taskId, one.appliedLatency) for one in tasks),
    )
    yield from _gauge(
        "tranlog_last_block_transactions",
        "Transactions of the last target transaction.",
        each((one.taskId, one.lastCommittedBlockSize) for one in tasks),
    )
    yield from _gauge(
        "tranlog_last_block_seconds", "What it took.", each((one.taskId, one.lastCommittedBlockTime) for one in tasks)
    )
    yield from _gauge(
        "tranlog_transaction_rate",
        "Transactions applied per second, over the time of this scrape.",
        each((one.taskId, one.rate) for one in tasks if one.rate >= 0),
    )
    yield from _gauge(
        "tranlog_change_rate",
        "Row changes applied per second, over the time of this scrape.",
        each((one.taskId, one.changeRate) for one in tasks if one.changeRate >= 0),
    )
    for field, text in _IN_FLIGHT.items():
        yield from _gauge(
            f"tranlog_in_flight_{field}", text, each((n, getattr(one, field)) for n, one in facts.in_flight.items())
        )
    yield from _gauge(
        "tranlog_in_flight_began_timestamp_seconds",
        "When the attempt at it began.",
        each((n, one.began_at / 1000) for n, one in facts.in_flight.items()),
    )
    yield from _gauge(
        "tranlog_waits_for_seqno",
        "The seqno that a channel waits for another to apply; no sample: it waits for nobody.",
        [
            (
                {**name, "channel": str(channel), "waits_for": str(other), "serial": str(waiting.serial).lower()},
                waiting.seqno,
            )
            for channel, waiting in (waits_of(rows) if facts.running else {}).items()
            for other in waiting.channels
        ],
    )
    for family, text, field in _COUNTERS:
        yield from _counter(family, text, each((channel, getattr(one, field)) for channel, one in counters))
    yield from _counter("tranlog_payload_bytes", "Payload applied.", each((n, one.bytes) for n, one in counters))
    yield from _counter(
        "tranlog_meeting_seconds",
        "What those meetings took, from the first look to the last.",
        each((n, one.wait_ms / 1000) for n, one in counters),
    )
    yield from _counter(
        "tranlog_time_seconds",
        "Where a channel's time went.",
        [
            ({**name, "channel": str(one.taskId), "on": on}, getattr(one, field))
            for one in tasks
            for on, field in _TIMES.items()
        ],
    )


def _of_shards(status: PipelineStatus, name: Mapping[str, str]) -> Iterator[str]:
    def each(values: Iterable[tuple[str, int, float | int]]) -> list[Sample]:
        return [({**name, "shard": shard, "channel": str(channel)}, value) for shard, channel, value in values]

    shards = status.shards
    yield from _counter(
        "tranlog_shard_transactions",
        "Transactions applied of a shard, as long as its channel tells it apart.",
        each((one.shardId, one.channel, one.eventCount) for one in shards),
    )
    yield from _gauge(
        "tranlog_shard_applied_seqno",
        "The last of them.",
        each((one.shardId, one.channel, one.appliedLastSeqno) for one in shards),
    )
    yield from _gauge(
        "tranlog_shard_applied_latency_seconds",
        "From the source's commit to the target's, of that one.",
        each((one.shardId, one.channel, one.appliedLatency) for one in shards),
    )


# --- the form --------------------------------------------------------------------------------------------


def _gauge(name: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield from _family("gauge", name, text, samples)


def _counter(name: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield from _family("counter", name, text, samples)


def _family(kind: str, name: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    unit = name.rpartition("_")[2]
    if unit in ("seconds", "bytes"):
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}"
    suffix = "_total" if kind == "counter" else ""
    for labels, value in samples:
        yield f"{name}{suffix}{_labels(labels)} {value}"


def _stateset(name: str, text: str, labels: Mapping[str, str], state: str) -> Iterator[str]:
    yield f"# TYPE {name} stateset"
    yield f"# HELP {name} {text}"
    for one in State:
        yield f"{name}{_labels({**labels, name: one.value})} {int(one.value == state)}"


def _labels(labels: Mapping[str, str]) -> str:
    told = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{told}}}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Serves `GET /metrics` until closed; where a secret is asked for, as a bearer token. Threads: its own."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        """For `open` only."""
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, address: str, exposure: Exposure, text: Callable[[], str]) -> MetricsServer:
        """Listen. Raises ConfigError where the security rule forbids it, or the port is taken."""
        host, port = check_exposure("metrics", address, exposure)
        one_at_a_time = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            timeout = _IDLE_S
            server_version = "tranlog"
            sys_version = ""

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self._send(404, "text/plain", "see /metrics\n")
                    return
                given = self.headers.get("Authorization", "")
                if not exposure.admits(given.removeprefix("Bearer ")):
                    self._send(401, "text/plain", "the secret is not the pipeline's\n")
                    return
                try:
                    with one_at_a_time:
                        body = text()
                except TranlogError as exc:
                    self._send(503, "text/plain", f"{exc}\n")
                    return
                self._send(200, CONTENT_TYPE, body)

            def _send(self, code: int, kind: str, body: str) -> None:
                raw = body.encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(raw)))
                if code == 401:
                    self.send_header("WWW-Authenticate", "Bearer")
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:
                logger.debug("metrics: " + format, *args)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request: object, client_address: object) -> None:
                logger.debug("a scrape went away", exc_info=True)

            def finish_request(self, request: object, client_address: object) -> None:
                # Here, in the request's own thread: a peer that says nothing holds up nobody else.
                assert isinstance(request, socket.socket)
                request.settimeout(_IDLE_S)
                if tls is None:
                    super().finish_request(request, client_address)
                    return
                with tls.wrap_socket(request, server_side=True) as wrapped:
                    super().finish_request(wrapped, client_address)

        tls = exposure.server_context()
        try:
            server = Server((host, port), Handler)
        except OSError as exc:
            why = f"cannot be listened at: {exc.strerror or exc}"
            raise ConfigError(option="metrics", value=address, why=why) from exc
        return cls(server)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
