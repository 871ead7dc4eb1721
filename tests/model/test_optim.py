"""Learning-rate rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imnet_pl.model.optim import scaled_lr, warmup_cosine, window_weight


def test_batch_64_gives_a_peak_of_0_025():  # S21
    assert scaled_lr(0.1, 64) == 0.025


@pytest.mark.parametrize("epochs", [30, 60, 90])
def test_rate_over_a_run(epochs):  # S22
    steps_per_epoch = 5004
    total, warmup = epochs * steps_per_epoch, 5 * steps_per_epoch
    rate = [warmup_cosine(s, total, warmup, 0.1, 1e-6) for s in range(total)]
    assert rate[0] == 0.1 / warmup
    assert rate[warmup - 1] == rate[warmup] == max(rate) == 0.1
    assert rate[-1] == pytest.approx(1e-6, rel=1e-9)
    middle = warmup + (total - 1 - warmup) // 2
    assert rate[middle] == pytest.approx((0.1 + 1e-6) / 2, rel=1e-3)
    assert all(a >= b for a, b in zip(rate[warmup:], rate[warmup + 1 :], strict=False))


@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 5), (2, 1), (3, 3)])
def test_short_runs_have_a_rate(total, warmup):
    rate = [warmup_cosine(s, total, warmup, 0.1, 1e-6) for s in range(total + 1)]
    assert all(1e-6 <= r <= 0.1 for r in rate)


@given(
    num_batches=st.integers(1, 20),
    accumulate=st.integers(1, 8),
    batch_size=st.integers(2, 9),
    data=st.data(),
)
def test_window_gives_the_gradient_of_the_large_batch(
    num_batches, accumulate, batch_size, data
):
    """S24: Lightning's 1/accumulate times our weight is each batch's share of its window."""
    sizes = [batch_size] * (num_batches - 1) + [data.draw(st.integers(1, batch_size))]
    for first in range(0, num_batches, accumulate):
        window = range(first, min(first + accumulate, num_batches))
        shares = [
            window_weight(i, num_batches, accumulate, sizes.__getitem__) / accumulate
            for i in window
        ]
        assert shares == pytest.approx(
            [sizes[i] / sum(sizes[j] for j in window) for i in window]
        )
