"""What both demos share: commands of ours as processes, waiting with a word on the screen, and the summary."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRANLOG = [sys.executable, "-m", "tranlog"]


class StepFailedError(Exception):
    """A step of the demo did not do what it must."""


def say(text: str) -> None:
    """Print one line of the story, at once."""
    print(text, flush=True)


class Process:
    """A command of ours in the background, its output in a file of the demo's folder."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.output = folder / f"{name}.log"
        with self.output.open("ab") as output:
            self.child = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def check(self) -> None:
        """Raise StepFailedError if the process ended by itself."""
        if self.child.poll() is not None:
            tail = "\n".join(self.output.read_text(errors="replace").splitlines()[-15:])
            raise StepFailedError(f"{self.name} ended with exit code {self.child.returncode}:\n{tail}")

    def kill(self) -> None:
        """kill -9: no chance to clean up."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def stop(self, timeout_s: float = 120) -> None:
        """SIGTERM, and expect the clean end that it promises."""
        self.child.send_signal(signal.SIGTERM)
        self.finish(timeout_s)

    def finish(self, timeout_s: float) -> None:
        """Wait for the end; raise StepFailedError unless it is a clean one."""
        try:
            code = self.child.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise StepFailedError(f"{self.name} did not end within {timeout_s:.0f} s") from exc
        if code != 0:
            self.check()

    def abandon(self) -> None:
        """End the process and what it started, whatever state they are in."""
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()


def tranlog(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run one of our commands to its end and return what it printed; raise StepFailedError for another exit code."""
    done = subprocess.run([*TRANLOG, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise StepFailedError(
            f"tranlog {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr.strip()}\n{done.stdout.strip()}"
        )
    return done.stdout


def status(conf: Path) -> dict[str, Any]:
    """Return `tranlog status --json`; a part that cannot be read just now, while it starts, is None in it."""
    answer: dict[str, Any] = json.loads(tranlog("--conf", str(conf), "status", "--json", codes=(0, 4)))
    return answer


def applied_seqno(conf: Path) -> int:
    """Return up to where everything is in the target; -1 while nothing is."""
    pipeline = status(conf)["pipeline"]
    return -1 if pipeline is None else int(pipeline["restart_seqno"])


def wait_until(what: str, ready: Callable[[], bool], processes: list[Process], timeout_s: float) -> None:
    """Poll until `ready`; raise StepFailedError when a process ends by itself or the time is up."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            raise StepFailedError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.3)


# --- the running pipeline, through its endpoint ---


def running_state(conf: Path) -> dict[str, Any] | None:
    """Return `tranlog state --json` of the running pipeline; None while none answers."""
    done = subprocess.run(
        [*TRANLOG, "--conf", str(conf), "state", "--json"], capture_output=True, text=True, check=False
    )
    answer: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return answer


def wait_for_pipeline(conf: Path, *what: str, processes: list[Process], timeout_s: float) -> None:
    """Run `tranlog wait` with these options, once the pipeline listens; raise StepFailedError if it does not come."""
    asked = f"tranlog wait {' '.join(what)}"
    wait_until(f"{asked}: somebody answers", lambda: running_state(conf) is not None, processes, timeout_s)
    try:
        tranlog("--conf", str(conf), "wait", *what, "--timeout", f"{timeout_s:g}")
    except StepFailedError:
        for process in processes:
            process.check()  # which says more, if that is why
        raise


def invite(conf: Path) -> None:
    """Tell whoever watches how to look at it from another terminal."""
    program = Path(sys.executable).with_name("tranlog")
    command = f"{_short(program) if program.exists() else 'tranlog'} --conf {_short(conf)}"
    say(f"   look on from another terminal: {command} top")
    say(f"                                  {command} status -name stores")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def show(text: str) -> None:
    """Print what a command has printed, as such."""
    for line in text.splitlines():
        say(f"   | {line}".rstrip())


def look(conf: Path) -> None:
    """Print what `tranlog top` shows at this moment."""
    show(tranlog("--conf", str(conf), "top", "--once"))


def look_at_stores(conf: Path) -> None:
    """Print log and channels of the running pipeline in the form of the article on parallel queues."""
    say("   tranlog status -name stores:")
    show(tranlog("--conf", str(conf), "status", "-name", "stores"))


def reload(conf: Path, *, channels: tuple[int, int]) -> None:
    """Write another number of channels into the configuration, and have the running pipeline take it up."""
    before, after = (f"channels = {number}\n" for number in channels)
    text = conf.read_text()
    if text.count(before) != 1:
        raise StepFailedError(f"{conf} does not say {before.strip()!r} once")
    conf.write_text(text.replace(before, after))
    show(tranlog("--conf", str(conf), "reload", "--timeout", "120"))


def beat(conf: Path, name: str) -> int:
    """Have a heartbeat put into the log behind everything else, and return its seqno, the log's last."""
    return int(json.loads(tranlog("--conf", str(conf), "heartbeat", name, "--timeout", "300", "--json"))["seqno"])


# --- what happened ---


def summary(state: dict[str, Any], verdict: dict[str, Any], *, seconds: float) -> None:
    """Print what happened; raise StepFailedError unless source and target are equal."""
    log, pipeline = state["log"], state["pipeline"]
    channels = pipeline["channels"]
    total = {name: sum(one["counters"][name] for one in channels) for name in channels[0]["counters"]}
    transactions = log["committed_seqno"] - log["first_seqno"] + 1
    say(f"   log        {transactions} transactions in {log['segments']} segment(s), {log['bytes'] / 1e6:.1f} MB")
    say(
        f"   applied    {total['transactions']} transactions, {total['changes']} changes, "
        f"{total['serial']} of them serial in {total['sections']} sections"
    )
    rate = f"{transactions / seconds:.0f} transactions/s"
    say(f"   rate       {rate} from the first write to the last apply, through kill and restart")
    say(f"   lag        {pipeline['lag_seqnos']} transactions, {pipeline['lag_ms']} ms")
    say("   channel    applied_seqno  transactions  changes  target transactions  shards")
    for one in channels:
        shards = [shard for shard, channel in sorted(pipeline["shards"].items()) if channel == one["channel"]]
        named = ", ".join(shards[:2]) + (f" and {len(shards) - 2} more" if len(shards) > 2 else "")
        counters = one["counters"]
        say(
            f"   {one['channel']:>7} {one['applied_seqno']:>16} {counters['transactions']:>13} "
            f"{counters['changes']:>8} {counters['groups']:>20}  {named}"
        )
    rows = sum(table["source_rows"] for table in verdict["tables"])
    say(f"   compared   {len(verdict['tables'])} tables, {rows} rows")
    for note in sorted({note for table in verdict["tables"] for note in table["notes"]}):
        say(f"              {note}")
    say("")
    if not verdict["equal"]:
        different = [table["table"] for table in verdict["tables"] if not table["equal"]]
        raise StepFailedError(f"source and target differ in {', '.join(different)}")
    say("source and target are equal")
