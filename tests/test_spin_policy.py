"""Spin policy of a worker pool: how long workers spin, and which calls wake them."""

from __future__ import annotations

from subquant.runtime.worker_threads import _SpinPolicy

MS = 1_000_000


def test_workers_are_not_woken_in_vain_repeatedly() -> None:
    policy, now, woken = _SpinPolicy(), 0, 0
    for _ in range(1000):  # a call every 10 ms, which ends before workers wake
        now += 10 * MS
        woken += policy.should_wake(now, 5)
    assert 90 <= woken < 110
    while policy.should_wake(now, 5):
        now += 10 * MS
    assert not policy.should_wake(now + 10 * MS, 5)
    assert policy.should_wake(now + 10 * MS + MS // 2, 5)
    assert all(policy.should_wake(now + n * 10 * MS, 5 + n) for n in range(2, 100))


def test_workers_spin_less_after_long_parking() -> None:
    policy, now = _SpinPolicy(), 0
    eighths_of_ms = []
    for slept in (5 * MS, 20 * MS, 20 * MS, 20 * MS, 20 * MS, 5 * MS, MS // 2, MS // 2, 0, 0):
        now += slept
        policy.should_wake(now, now)
        eighths_of_ms.append(policy.spin_nanoseconds * 8 // MS)
    assert eighths_of_ms == [8, 4, 2, 1, 1, 1, 2, 4, 8, 8]
