"""Every kind of process, live, on Spark: its metrics, its health, and whatever its own document allows to be asked.

docs/control.md, "Metrics" and "Operations".
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from fix_effort import Effort
from fix_metrics import read_openmetrics, read_text
from tranlog.source.sqlite import connect
from tranlog.testing.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(400)]

WAIT_S = 120.0
CONFIG = """\
[service]
name = "shop"
[source]
kind = "sqlite"
load = "none"
path = "source.db"
[log]
dir = "log"
[target]
kind = "sqlite"
path = "target.db"
ddl = "ignore"
[pipeline]
channels = 2
on_error = "offline"
control = "{control}"
"""


class Service:
    """A source and a target in a folder, and the processes between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.control = f"127.0.0.1:{free_port()}"
        (folder / "tranlog.toml").write_text(CONFIG.format(control=self.control))
        self.source = connect(str(folder / "source.db"))
        self.source.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT)")
        self.tell("tables", "create", "--from", "source")
        self.rows = 0

    def tell(self, *words: str) -> str:
        command = [sys.executable, "-m", "tranlog", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command until the block ends; what it wrote and its end must be clean."""
        with (self.folder / f"{words[0]}.err").open("w+") as errors:
            process = subprocess.Popen([sys.executable, "-m", "tranlog", *words], cwd=self.folder, stderr=errors)
            try:
                yield process
                process.terminate()
                assert process.wait(60) == 0
                errors.seek(0)
                assert "Traceback" not in errors.read()
            finally:
                process.kill()
                process.wait()

    def write(self) -> None:
        self.rows += 1
        self.source.execute("INSERT INTO item VALUES (?, 'a note')", (self.rows,))

    def applied(self) -> int:
        target = apsw.Connection(str(self.folder / "target.db"), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return int(target.execute("SELECT count(*) FROM item").get)
        finally:
            target.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service(tmp_path)
    try:
        yield opened
    finally:
        opened.source.close()


def until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_S
    told = "nobody listens"
    while True:
        with contextlib.suppress(httpx.TransportError):
            found = httpx.get(f"http://{address}/readyz", timeout=20)
            if found.is_success:
                return
            told = found.text
            assert found.status_code == 503 and found.json()["reasons"], told
        assert process.poll() is None and time.monotonic() < deadline, told
        time.sleep(0.1)


def scraped(address: str) -> dict[str, Any]:
    """Scrape in both formats; hold the older one against Prometheus' own linter where it is installed."""
    old = httpx.get(f"http://{address}/metrics", timeout=30)
    assert old.is_success
    if shutil.which("promtool") is not None:
        done = subprocess.run(["promtool", "check", "metrics"], input=old.text, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
    new = httpx.get(f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text"}, timeout=30)
    found = read_openmetrics(new.text)
    assert found.keys() == read_text(old.text).keys()
    return found


def test_metrics_of_every_kind_of_process(service: Service) -> None:
    capture, apply, run = (f"127.0.0.1:{free_port()}" for _ in range(3))
    service.write()
    with service.running("capture", "--metrics", capture) as captures:
        until_ready(capture, captures)
        with service.running("apply", "--metrics", apply) as applies:
            until_ready(apply, applies)
            service.tell("flush", "--timeout", "100")
            assert service.applied() == service.rows
            of_capture, of_apply = scraped(capture), scraped(apply)
            assert httpx.post(f"http://{apply}/offline", json={}).status_code == 403, "who comes here only reads"
            assert httpx.post(f"http://{service.control}/wait", json={"applied": 0}).json()["reached"]
    assert list(of_capture["tranlog_source_up"].values()) == [1]
    assert list(of_capture["tranlog_source_lag_seconds"].values()) == [0]
    assert list(of_capture["tranlog_source_waiting_transactions"].values()) == [0]
    assert list(of_capture["tranlog_capture_transactions"].values()) == [2], "its table, and its row"
    assert "tranlog_log_last_seqno" in of_capture and "tranlog_state" not in of_capture
    assert not [name for name in of_apply if name.startswith(("tranlog_capture", "tranlog_source"))]
    assert [dict(at)["tranlog_waits_for"] for at, holds in of_apply["tranlog_waits_for"].items() if holds] == ["source"]
    with service.running("run", "--metrics", run) as both:
        until_ready(run, both)
        of_run = scraped(run)
    captured = of_capture.keys() - {"tranlog_capture_lag_seconds"}  # nothing new came
    assert of_run.keys() >= captured | {"tranlog_state", "tranlog_applied_seqno"}


def tamed(path: str, body: Any) -> Any:
    """Take from a request that can be obeyed what would keep the pipeline from going on, or take a minute."""
    if path in ("/wait", "/flush", "/reload") and not isinstance(body, dict):
        return {"timeout_s": 0.05}
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name not in ("from_seqno", "skip_seqno", "hard")}
        if path in ("/wait", "/flush", "/reload") and isinstance(body.get("timeout_s", 60), int | float):
            body["timeout_s"] = min(0.05, body.get("timeout_s", 60))
    return body


def test_whatever_the_document_allows(service: Service, effort: Effort) -> None:
    """No 5xx but that of /readyz, no answer of another form, no hang; and the pipeline goes on."""
    seconds = effort(5, 10, 60)
    with service.running("run") as process:
        until_ready(service.control, process)
        schema = schemathesis.openapi.from_url(f"http://{service.control}/openapi.json")
        found: list[Any] = [*schema.get_all_operations()]
        operations = [one.ok() for one in found]
        assert len(operations) > 12
        ends, asked = time.monotonic() + seconds, Counter[str]()
        while time.monotonic() < ends:
            for operation in operations:
                for mode in GenerationMode:

                    @settings(
                        max_examples=effort(3, 5, 20),
                        deadline=None,
                        database=None,
                        phases=[Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    )
                    @given(case=operation.as_strategy(generation_mode=mode))
                    def ask(case: Any) -> None:
                        asked[case.path] += 1
                        if case.method == "POST":
                            case.body = tamed(case.path, case.body)
                            if isinstance(case.body, dict | list):
                                case.media_type = "application/json"
                        answer = case.call(timeout=20)
                        assert answer.status_code < 500 or (case.path, answer.status_code) == ("/readyz", 503)
                        case.validate_response(answer, checks=[content_type_conformance, response_schema_conformance])

                    with contextlib.suppress(Unsatisfiable):  # there is nothing else to ask of this one
                        ask()
            service.write()
        assert asked.keys() == {one.path for one in operations}
        service.write()
        deadline = time.monotonic() + WAIT_S
        while service.applied() < service.rows:
            assert process.poll() is None and time.monotonic() < deadline, service.tell("state")
            # Again and again: where it is on its way offline, or online up to a seqno that it was asked for before.
            httpx.post(f"http://{service.control}/online", json={})
            time.sleep(0.1)
