"""The numbers of a running pipeline as OpenMetrics, over HTTP.

Owns their names and the small server. The numbers are those of `status -name …`, from the same dataclasses. The hard
idea: a scrape reads the target by a connection of its own, one scrape at a time, so whoever asks too often waits for
himself and not for the channels.

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
from tranlog.pipeline.operation import OperationState
from tranlog.pipeline.progress import Counters
from tranlog.pipeline.states import State
from tranlog.pipeline.view import LogFacts, PipelineFacts, parallel_queue_store, shard_views, task_views
from tranlog.service.exposure import Exposure, check_exposure

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
_IDLE_S: Final = 10.0

Sample = tuple[Mapping[str, str], float | int]


def metrics_text(state: OperationState, *, log: LogFacts, pipeline: PipelineFacts) -> str:
    """Return the exposition. Pure."""
    name = {"pipeline": state.pipeline}
    queue, tasks, shards = parallel_queue_store(pipeline), task_views(pipeline), shard_views(pipeline)
    counters = {row.channel: Counters.parse(row.stats) for row in pipeline.channels}

    def each(values: Mapping[int, float | int]) -> list[Sample]:
        return [({**name, "channel": str(channel)}, value) for channel, value in values.items()]

    lines = [
        *_stateset("tranlog_state", "Where the pipeline stands.", name, state.state),
        *_family("gauge", "tranlog_log_first_seqno", "The first seqno that the log holds.", [(name, log.first_seqno)]),
        *_family("gauge", "tranlog_log_last_seqno", "The last seqno that the log holds.", [(name, log.last_seqno)]),
        *_family(
            "gauge",
            "tranlog_log_committed_seqno",
            "Up to where the log may be applied.",
            [(name, log.committed_seqno)],
        ),
        *_family("gauge", "tranlog_channels", "How many channels apply.", [(name, queue.queues)]),
        *_family("gauge", "tranlog_serialized", "Whether a serial section runs.", [(name, int(queue.serialized))]),
        *_family("counter", "tranlog_serial_sections", "Serial sections so far.", [(name, queue.serializationCount)]),
        *_family(
            "gauge",
            "tranlog_applied_seqno",
            "Up to where a channel has everything of its own in the target.",
            each({one.taskId: one.appliedLastSeqno for one in tasks}),
        ),
        *_family(
            "gauge",
            "tranlog_applied_latency_seconds",
            "From the source's commit to the target's, of the last transaction applied.",
            each({one.taskId: one.appliedLatency for one in tasks}),
            unit="seconds",
        ),
        *_counters("tranlog_transactions", "Transactions applied.", each, counters, "transactions"),
        *_counters("tranlog_changes", "Row changes applied.", each, counters, "changes"),
        *_counters("tranlog_target_transactions", "Target transactions with rows.", each, counters, "groups"),
        *_counters("tranlog_discarded", "Other channels' transactions passed.", each, counters, "skipped"),
        *_counters("tranlog_omitted", "Transactions that the operator had left out.", each, counters, "omitted"),
        *_counters("tranlog_meetings", "Meetings that were waited for.", each, counters, "waits"),
        *_counters("tranlog_retries", "Reconnects to the target.", each, counters, "retries"),
        *_family(
            "counter",
            "tranlog_time_seconds",
            "Where a channel's time went.",
            [
                ({**name, "channel": str(one.taskId), "on": on}, getattr(one, field))
                for one in tasks
                for on, field in _TIMES.items()
            ],
            unit="seconds",
        ),
        *_family(
            "counter",
            "tranlog_shard_transactions",
            "Transactions applied of a shard, as long as its channel tells it apart.",
            [({**name, "shard": one.shardId, "channel": str(one.channel)}, one.eventCount) for one in shards],
        ),
        *_family(
            "gauge",
            "tranlog_shard_applied_latency_seconds",
            "The same latency, of a shard's last transaction.",
            [({**name, "shard": one.shardId, "channel": str(one.channel)}, one.appliedLatency) for one in shards],
            unit="seconds",
        ),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _counters(
    name: str,
    text: str,
    each: Callable[[Mapping[int, float | int]], list[Sample]],
    counters: Mapping[int, Counters],
    field: str,
) -> Iterator[str]:
    yield from _family("counter", name, text, each({n: getattr(one, field) for n, one in counters.items()}))


def _family(kind: str, name: str, text: str, samples: Iterable[Sample], *, unit: str = "") -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}"
    suffix = "_total" if kind == "counter" else ""
    for labels, value in samples:
        yield f"{name}{suffix}{_labels(labels)} {value}"


def _stateset(name: str, text: str, labels: Mapping[str, str], state: State) -> Iterator[str]:
    yield f"# TYPE {name} stateset"
    yield f"# HELP {name} {text}"
    for one in State:
        yield f"{name}{_labels({**labels, name: one.value})} {int(one is state)}"


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
