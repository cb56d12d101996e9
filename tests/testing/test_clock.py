"""testing/clock.py: time moves when told, and sleeping costs none."""

from __future__ import annotations

import pytest

from tranlog.testing.clock import ManualClock


def test_time_stands_still_until_told() -> None:
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2_500, 1.5)
    clock.sleep(0.25)
    assert (clock.now_ms(), clock.monotonic(), clock.slept) == (2_750, 1.75, [0.25])


def test_only_the_wall_clock_goes_back() -> None:
    clock = ManualClock(5_000)
    clock.set_ms(10)
    assert (clock.now_ms(), clock.monotonic()) == (10, 0.0)
    with pytest.raises(AssertionError):
        clock.advance(-1)


def test_small_steps_add_up() -> None:
    clock = ManualClock(0)
    for _ in range(1_000):
        clock.sleep(0.0005)
    assert clock.now_ms() == pytest.approx(500, abs=1)
