"""No more pixels at once than the budget allows."""

import threading

import pytest

from imnet_pl.data.pixel_budget import PixelBudget


def test_threads_wait_for_room():
    budget, most, lock = PixelBudget(100, uncounted=10), [0], threading.Lock()
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        for _ in range(50):
            with budget.hold(40):
                with lock:
                    most[0] = max(most[0], budget.held)
                barrier_free.wait(0.0001)

    barrier_free = threading.Event()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 40 <= most[0] <= 100
    assert budget.held == 0


def test_more_than_the_whole_budget_is_held_alone():
    budget, inside = PixelBudget(100, uncounted=10), threading.Event()

    def work():
        with budget.hold(11):
            inside.set()

    with budget.hold(10_000):
        thread = threading.Thread(target=work)
        thread.start()
        assert not inside.wait(0.05)
    thread.join()
    assert inside.is_set()


def test_an_error_gives_the_room_back():
    budget = PixelBudget(100, uncounted=10)
    with pytest.raises(ValueError, match="broken"), budget.hold(50):
        raise ValueError("broken")
    assert budget.held == 0


def test_small_pictures_are_not_counted():
    budget = PixelBudget(100, uncounted=10)
    with budget.hold(10):
        assert budget.held == 0
