"""The numbers of a running pipeline as OpenMetrics, over HTTP.

Owns their names and the small server. The numbers are those of `status`, from the same model;
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
from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.progress import Lag
from tranlog.pipeline.rules.states import OperationState, State
from tranlog.pipeline.status.status import ChannelState, LogState, PipelineState, Status, at
from tranlog.service.config.exposure import Exposure, check_exposure
from tranlog.service.show.overview import TIMES

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
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
_IDLE_S: Final = 10.0

Sample = tuple[Mapping[str, str], float | int]


def metrics_text(status: Status) -> str:
    """Return the exposition of a status that nothing is missing of. Pure.

    Rates are there while the pipeline runs and was watched, latencies as soon as something was applied.
    """
    assert status.process is not None and status.log is not None and status.pipeline is not None
    name = {"pipeline": status.pipeline.options.pipeline}
    lines = [
        *_stateset("tranlog_state", "Where the pipeline stands.", name, status.process.state),
        *_whole(status, status.process, status.pipeline, name),
        *_of_log(status.log, name),
        *_of_channels(status.pipeline, name),
        *_of_shards(status.pipeline, name),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _whole(status: Status, process: OperationState, pipeline: PipelineState, name: Mapping[str, str]) -> Iterator[str]:
    def one(family: str, text: str, value: float | int | None) -> Iterator[str]:
        return _gauge(family, text, [] if value is None else [(name, value)])

    behind = pipeline.lag if pipeline.lag is not None and pipeline.channels else Lag(seqnos=0, ms=0)
    yield from one("tranlog_uptime_seconds", "Since the process started.", _seconds(status.uptime_ms))
    yield from one("tranlog_in_state_seconds", "Since it is in this state.", _seconds(status.in_state_ms))
    yield from one(
        "tranlog_pending_error_seqno",
        "The seqno that the error which took it offline is about; -1: none.",
        NO_SEQNO if process.pending is None else process.pending.seqno,
    )
    yield from one("tranlog_slots", "How many channels Spark can run at a time.", process.slots)
    yield from _gauge(
        "tranlog_trouble_since_timestamp_seconds",
        "Since when a channel cannot use the target, -1 for the driver; no sample: it can.",
        [({**name, "channel": str(one.channel)}, one.since_ms / 1000) for one in process.troubles],
    )
    yield from one("tranlog_channels", "How many channels apply.", len(pipeline.channels))
    yield from one("tranlog_serialized", "Whether a serial section runs.", int(pipeline.serialized))
    yield from one("tranlog_head_seqno", "The position of the channel that is furthest ahead.", pipeline.head_seqno)
    yield from one(
        "tranlog_restart_seqno",
        "The least of the channels' positions: everything up to there is in the target.",
        pipeline.restart_seqno,
    )
    yield from one(
        "tranlog_restart_epoch",
        "The epoch of that position; -1: nothing is applied.",
        -1 if pipeline.reached is None else pipeline.reached.row.epoch,
    )
    yield from one(
        "tranlog_stop_at_seqno",
        "Up to where the channels are told to go; -1: to end where they are.",
        None if pipeline.row is None else pipeline.row.stop_at_seqno,
    )
    yield from one("tranlog_lag_transactions", "Committed transactions that are not all applied.", behind.seqnos)
    yield from one("tranlog_lag_seconds", "How long ago the first of them was committed.", _seconds(behind.ms))
    if pipeline.newest_latency_ms is not None:
        yield from one(
            "tranlog_newest_applied_latency_seconds",
            "From the source's commit to the target's, of the newest transaction applied.",
            _seconds(pipeline.newest_latency_ms),
        )
    if status.relative_latency_ms is not None:
        yield from one(
            "tranlog_relative_latency_seconds",
            "How long ago the least position was committed at the source.",
            _seconds(status.relative_latency_ms),
        )
    yield from one(
        "tranlog_offline_interval_seconds",
        "How far the channels are apart, in the source's commit times.",
        _seconds(pipeline.offline_interval_ms),
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _of_log(log: LogState, name: Mapping[str, str]) -> Iterator[str]:
    for family, text, value in (
        ("first_seqno", "The first seqno that the log holds.", log.first_seqno),
        ("last_seqno", "The last seqno that the log holds.", log.last_seqno),
        ("committed_seqno", "Up to where the log may be applied.", log.committed_seqno),
        ("epoch", "The epoch of its last transaction.", log.epoch),
        ("segments", "How many segments it has.", log.segments),
        ("size_bytes", "How long they are together.", log.size_bytes),
        ("active_seqno", "The first that somebody still needs; -1: nobody.", log.active_seqno),
    ):
        yield from _gauge(f"tranlog_log_{family}", text, [(name, value)])
    yield from _gauge(
        "tranlog_log_hold_seqno",
        "From where on somebody still needs it.",
        [({**name, "hold": one.name}, one.restart_seqno) for one in log.holds if one.restart_seqno is not None],
    )


def _of_channels(pipeline: PipelineState, name: Mapping[str, str]) -> Iterator[str]:
    def labels(one: ChannelState, **more: str) -> Mapping[str, str]:
        return {**name, "channel": str(one.row.channel), **more}

    def each(path: str, per: float = 0) -> list[Sample]:
        found = [(labels(one), at(one, path)) for one in pipeline.channels]
        return [(where, value / per if per else value) for where, value in found if value is not None]

    yield from _gauge(
        "tranlog_applied_seqno",
        "Up to where a channel has everything of its own in the target.",
        each("row.applied_seqno"),
    )
    yield from _gauge("tranlog_applied_epoch", "The epoch of that position.", each("row.epoch"))
    yield from _gauge(
        "tranlog_applied_commit_timestamp_seconds",
        "When that position was committed at the source; 0: nothing is applied.",
        each("row.tstamp", 1000),
    )
    yield from _gauge(
        "tranlog_position_moved_timestamp_seconds",
        "When that position was written, by the target's clock.",
        each("row.updated_at", 1000),
    )
    yield from _gauge(
        "tranlog_counted_from_seqno",
        "The first seqno that a channel's counters know.",
        each("stats.since"),
    )
    yield from _gauge(
        "tranlog_applied_latency_seconds",
        "From the source's commit to the target's, of the last transaction applied.",
        each("stats.latency_ms", 1000),
    )
    yield from _gauge(
        "tranlog_last_block_transactions",
        "Transactions of the last target transaction.",
        each("stats.block"),
    )
    yield from _gauge("tranlog_last_block_seconds", "What it took.", each("stats.block_us", 1e6))
    for what, of, field in (("Transactions", "transaction", "transactions"), ("Row changes", "change", "changes")):
        yield from _gauge(
            f"tranlog_{of}_rate",
            f"{what} applied per second, over the time of this scrape.",
            [(where, round(rate, 3)) for where, rate in each(f"{field}_per_s")],
        )
    for field, text in (
        ("seqno", "The large transaction that a channel is in; no sample: none."),
        ("changes", "How many of its changes went to the target so far."),
        ("read_bytes", "How many of its bytes are read."),
        ("size_bytes", "Of how many."),
    ):
        yield from _gauge(f"tranlog_in_flight_{field}", text, each(f"in_flight.{field}"))
    yield from _gauge(
        "tranlog_in_flight_began_timestamp_seconds",
        "When the attempt at it began.",
        each("in_flight.began_at", 1000),
    )
    yield from _gauge(
        "tranlog_waits_for_seqno",
        "The seqno that a channel waits for another to apply; no sample: it waits for nobody.",
        [
            (labels(one, waits_for=str(other), serial=str(one.waiting.serial).lower()), one.waiting.seqno)
            for one in pipeline.channels
            if one.waiting is not None
            for other in one.waiting.channels
        ],
    )
    for family, text, field in _COUNTERS:
        yield from _counter(family, text, each(f"counters.{field}"))
    yield from _counter("tranlog_payload_bytes", "Payload applied.", each("counters.bytes"))
    yield from _counter(
        "tranlog_meeting_seconds",
        "What those meetings took, from the first look to the last.",
        each("counters.wait_ms", 1000),
    )
    yield from _counter(
        "tranlog_time_seconds",
        "Where a channel's time went.",
        [
            (labels(one, on="extract" if field == "read" else field), at(one.counters, f"{field}_us") / 1e6)
            for one in pipeline.channels
            for field in TIMES
        ],
    )


def _of_shards(pipeline: PipelineState, name: Mapping[str, str]) -> Iterator[str]:
    def each(path: str) -> list[Sample]:
        return [
            ({**name, "shard": one.shard, "channel": str(one.channel)}, at(one.count, path)) for one in pipeline.shards
        ]

    yield from _counter(
        "tranlog_shard_transactions",
        "Transactions applied of a shard, as long as its channel tells it apart.",
        each("transactions"),
    )
    yield from _gauge("tranlog_shard_applied_seqno", "The last of them.", each("applied_seqno"))
    yield from _gauge(
        "tranlog_shard_applied_latency_seconds",
        "From the source's commit to the target's, of that one.",
        [(labels, ms / 1000) for labels, ms in each("latency_ms")],
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
