"""`tranlog verify --live` under the harms of `make kill`: asked for, left under way, and what it said.

Owns the command and the count of its verdicts. A verification goes on under the harms that follow, so a table may be
"not judged" for many reasons; one that is said to differ fails the run, since at a position both sides are equal.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from demo_steps import Process
from tranlog.capture.verify_requests import read_verify_progress, read_verify_requests
from tranlog.ids import NO_SEQNO

if TYPE_CHECKING:
    from kill_service import Service

MOST_S = 120.0
"""How long a verification may take, the restarts of what was killed included."""


@dataclass(slots=True)
class LiveVerifications:
    """Those of one service, one at a time. `verdicts`: how many tables were judged how."""

    verdicts: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    process: Process | None = None

    def ask(self, service: Service) -> None:
        """Ask for one of all tables."""
        self.asked += 1
        words = ("--live", "--json", "--rows", "0", "--timeout", f"{MOST_S:g}")  # no second look at what differs
        self.process = service.start(f"verify-{self.asked}", "verify", *words)

    def is_under_way(self, service: Service) -> bool:
        """Whether its snapshot stands in the log, or it is at its end."""
        assert self.process is not None
        told = [read_verify_progress(str(service.log), one.verify) for one in read_verify_requests(str(service.log))]
        return self.process.child.poll() is not None or any(one and one.seqno != NO_SEQNO for one in told)

    def is_over(self) -> bool:
        """Count the verdicts of one that has ended; whether none is under way. Raises StepFailedError for its failure.

        Where a server was away when it looked, it has ended with 4, and says nothing.
        """
        process = self.process
        if process is None:
            return True
        code = process.child.poll()
        if code is None:
            return False
        self.process = None
        if code not in (0, 1, 4):
            process.check()
        if code != 4:
            (told,) = [line for line in process.output.read_text().splitlines() if line.startswith('{"')]
            tables = json.loads(told)["tables"]
            self.verdicts.update(one["verdict"] for one in tables)
            for one in tables:
                if one["verdict"] == "differs":
                    print(f"   {process.name} says: {one}", file=sys.stderr, flush=True)
        return True

    def abandon(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.abandon()
