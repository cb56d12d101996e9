"""findings: an error as a finding, its remedy apart from the rest, and clocks that differ."""

from __future__ import annotations

from collections.abc import Iterator

from tranlog.errors import SourceSetupError, SourceUnavailableError, TranlogError
from tranlog.findings import Severity, compare_clocks, fine, listed, names_of, tried
from tranlog.testing.clock import ManualClock

SETUP = SourceSetupError(why="the binlog is off", remedy="Start it with --log-bin")


def test_an_error_says_what_is_wrong_and_what_mends_it() -> None:
    def look() -> str:
        raise SETUP

    found = tried("settings", look)
    assert (found.severity, found.text) == (Severity.WRONG, "this source cannot be captured: the binlog is off")
    assert found.remedy == "Start it with --log-bin"
    assert tried("settings", lambda: "all is well") == fine("settings", "all is well")


def test_problems_are_listed_until_one_is_raised() -> None:
    def problems() -> Iterator[TranlogError]:
        yield SETUP
        raise SourceUnavailableError(where="here", why="it went away")

    first, second = listed("settings", problems(), otherwise="none")
    assert first.remedy == "Start it with --log-bin" and second.remedy == "Start it, then start capture again"
    assert second.text.endswith("it went away")
    assert [one.severity for one in listed("settings", [], otherwise="none")] == [Severity.FINE]


def test_clocks_are_compared_but_for_the_time_of_the_answer() -> None:
    clock = ManualClock()
    now = clock.now_ms()

    def slow() -> int:
        clock.advance(60)
        return now + 30_000

    assert compare_clocks(clock, slow).severity is Severity.FINE
    assert "9 s apart" in compare_clocks(clock, lambda: clock.now_ms() + 9_000).text
    assert "9 s apart" in compare_clocks(clock, lambda: clock.now_ms() - 9_000).text


def test_many_names_are_cut() -> None:
    assert names_of(["a", "b"]) == "a, b"
    assert names_of(map(str, range(12))).endswith("8, 9 and 2 more")
