"""How long does a serial section take among four channels, and what do serial transactions in a row cost?

One load is written three times: as it is; with one in so many of its transactions recorded as belonging to no shard,
each of which is then a section by itself, in front of which all channels meet, and behind it again; and with all of
them recorded so, which is one long section. The changes are the same, so the difference between the first two, divided
by the number of sections, is what a section costs, the channels' groups that it cuts short included. The long section
is held against one channel on the load as it is. CPU time is that of everybody, the target's server too.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from frame import Bench, Question, at_most, run
from shop import CatchUp, Shop, applied, configure, fresh_target, python, watch, write_log

from tranlog.target.options import open_target
from tranlog.testing.servers import PostgresServer

TRANSACTIONS = 30_000
TRY_TRANSACTIONS = 10_000
CHANNELS = 4
EVERY = 50
"""One transaction in so many is a section."""
MOST_MS = 10
MOST_RATIO = 2

QUESTION = Question(
    name="serial_sections",
    text=f"How long does a serial section take among {CHANNELS} channels, and what do many serial transactions in a "
    "row cost?",
    peer="the same changes of which none is serial, on one channel; a section's own time is absolute",
)


def catch_up(server: PostgresServer, log: Path, shop: Shop, *, channels: int) -> CatchUp:
    """Apply a whole log into a fresh target."""
    options = fresh_target(server, shop)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place, closing(open_target(options)) as target:
        conf = Path(place) / "tranlog.toml"
        configure(conf, log, options, channels=channels)
        with python(["-m", "tranlog", "--conf", str(conf), "apply", "--until", "now", "--json"]) as running:
            taken = watch(lambda: applied(target), running, shop.transactions, also=(server.pid,))
            running.wait(60)
            return taken


def measure(bench: Bench) -> None:
    """Apply the three logs by turns, and the plain one on one channel too."""
    transactions = bench.size(TRANSACTIONS, trying=TRY_TRANSACTIONS)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, PostgresServer() as server:
        logs = {
            "none serial": (lambda number: False, CHANNELS),
            "one in many": (lambda number: number % EVERY == EVERY - 1, CHANNELS),
            "all serial": (lambda number: True, CHANNELS),
        }
        shops = {
            log: write_log(Path(name) / log.replace(" ", "_"), transactions, seed=1, serial=serial)
            for log, (serial, _) in logs.items()
        }
        sides = [(log, channels) for log, (_, channels) in logs.items()] + [("none serial", 1)]
        runs: dict[tuple[str, int], list[CatchUp]] = {side: [] for side in sides}
        for turn in range(bench.rounds(3)):
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                log, channels = side
                taken = catch_up(server, Path(name) / log.replace(" ", "_"), shops[log], channels=channels)
                runs[side].append(taken)
                bench.say(f"{log}, {channels} channel(s): {taken.rate:.0f} transactions/s, {taken.cpu_us:.0f} us CPU")
    report(bench, *[runs[side] for side in sides])


def report(
    bench: Bench, plain: list[CatchUp], sections: list[CatchUp], in_a_row: list[CatchUp], single: list[CatchUp]
) -> None:
    """Add the rows; by transaction, since a run is counted from the first look that saw some applied."""
    pairs = list(zip(sections, plain, strict=True))
    bench.add(
        "a section",
        ours=[(1 / with_.rate - 1 / without.rate) * EVERY * 1e3 for with_, without in pairs],
        unit="ms",
        must=at_most(MOST_MS),
    )
    cpu = [(with_.cpu_us - without.cpu_us) * EVERY / 1e3 for with_, without in pairs]
    bench.add("a section, CPU", ours=cpu, unit="ms")
    bench.add(
        "serial in a row, against one channel",
        ours=[1e6 / one.rate for one in in_a_row],
        anchor=[1e6 / one.rate for one in single],
        unit="us/transaction",
        must=at_most(MOST_RATIO),
    )
    bench.add(
        "serial in a row, against one channel, CPU",
        ours=[one.cpu_us for one in in_a_row],
        anchor=[one.cpu_us for one in single],
        unit="us/transaction",
    )
    bench.say(f"sections: {statistics.median([one.transactions for one in sections]) / EVERY:.0f} in a round")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))
