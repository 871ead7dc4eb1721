"""The block order: what the full order promises, and blocks that are read in one go."""

import random
import tracemalloc
from itertools import islice

import numpy as np
import pytest

from imnet_pl.data.block_sampler import BlockSampler

IMAGENET = 1_281_167
SIZES = [(1, 4, 8), (3, 4, 8), (20, 64, 128), (1000, 1, 1), (1000, 8, 8), (1000, 8, 31)]
SIZES += [(1003, 2, 200), (1003, 4, 400), (5000, 4, 384), (5001, 7, 1000)]


def sampler(count, block, window, rank=0, world_size=1, **options):
    return BlockSampler(count, 3, rank, world_size, block, window, **options)


def positions(sampler):
    return [key.position for key in sampler]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_picture_once_over_all_ranks(sizes, world_size):
    ranks = [positions(sampler(*sizes, r, world_size)) for r in range(world_size)]
    count = sizes[0]
    assert {len(rank) for rank in ranks} == {count // world_size}
    together = [index for rank in ranks for index in rank]
    assert set(together) <= set(range(count))
    assert len(set(together)) == len(together) == count // world_size * world_size


def test_pictures_come_as_they_lie():
    rows = np.random.default_rng(0).permutation(1003)
    by_place = positions(sampler(1003, 4, 400))
    assert positions(sampler(1003, 4, 400, rows_at=rows)) == rows[by_place].tolist()
    first = sampler(1003, 4, 400, rows_at=rows).first_window().tolist()
    assert first == rows[by_place[: len(first)]].tolist()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_number_of_ranks_has_the_same_pictures_in_a_step(sizes):
    alone = positions(sampler(*sizes))
    for world_size in (2, 3, 8):
        for rank in range(world_size):
            mine = positions(sampler(*sizes, rank, world_size))
            count = sizes[0] // world_size
            assert mine == alone[rank::world_size][:count]


def test_order_is_a_function_of_seed_and_epoch():
    first, second = sampler(5001, 4, 384), sampler(5001, 4, 384)
    orders = []
    for epoch in (0, 1, 0):
        for each in (first, second):
            each.set_epoch(epoch)
        random.random()
        np.random.random()
        orders.append(positions(first))
        assert orders[-1] == positions(second)
    assert orders[0] == orders[2] != orders[1]
    assert positions(BlockSampler(5001, 4, 0, 1, 4, 384)) != orders[0]
    first.set_epoch(7)
    assert {key.epoch for key in first} == {7}


def test_order_is_that_of_every_system():
    each = sampler(1000, 2, 200)
    each.set_epoch(2)
    assert positions(each)[:8] == [830, 679, 390, 669, 59, 923, 269, 249]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_starts_anywhere_once(sizes, world_size):
    each = sampler(*sizes, world_size - 1, world_size)
    whole = positions(each)
    for start in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)}:
        each.start = max(0, start)
        assert positions(each) == whole[max(0, start) :]
        assert positions(each) == whole


def test_a_window_has_the_pictures_of_its_blocks_alone():
    """96 blocks of 4 in a window: 13 windows, of which the last has what is left over."""
    each = sampler(5001, 4, 384)
    order, blocks = positions(each), 0
    for begin in range(0, 4 * 384, 384):
        window = sorted(order[begin : begin + 384])
        assert window != order[begin : begin + 384]
        breaks = np.flatnonzero(np.diff(window) != 1) + 1
        runs = np.split(np.array(window), breaks)
        blocks += sum(-(-len(run) // 4) for run in runs)
    # One block may go over the end of the index.
    assert 4 * 96 <= blocks <= 4 * 96 + 1


@pytest.mark.parametrize("world_size", [2, 3, 4, 8, 16])
def test_ranks_read_blocks_of_their_own(world_size):
    """All but those of the last window, a twentieth here."""
    blocks = []
    for rank in range(world_size):
        mine = set()
        sampler_of_rank = sampler(
            384 * 20, 4, 384, rank, world_size, read_ahead=mine.add
        )
        read = set(positions(sampler_of_rank))
        assert read <= {index for span in mine for index in span}
        blocks.append(mine)
    times = sum(len(mine) for mine in blocks) / len(set.union(*blocks))
    assert times <= 1 + world_size / 20


def test_what_is_read_ahead_comes_before_it_is_taken():
    ahead, spans = set(), []

    def read_ahead(span):
        assert len(span) <= 4
        spans.append(span)
        ahead.update(span)

    each = sampler(5001, 4, 384, read_ahead=read_ahead)
    for taken, key in enumerate(each):
        assert key.position in ahead
        assert len(ahead) <= taken + 384 + 48 * 4 + 4  # a window, not the epoch
    assert sorted(i for span in spans for i in span) == list(range(5001))
    first = [span.start for span in spans[:96]]
    assert first == sorted(first)


def test_no_picture_is_always_the_last():
    last = set()
    each = sampler(1003, 4, 400)
    for epoch in range(40):
        each.set_epoch(epoch)
        last.add(positions(each)[-1])
    assert len(last) > 30


def test_a_window_is_all_that_is_in_memory():
    each = BlockSampler(IMAGENET, 0)
    each.start = 700_001
    tracemalloc.start()
    try:
        tail = sum(1 for _ in islice(each, 60_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tail == 60_000
    assert peak < 3e6


def test_a_batch_mixes_many_classes():
    """1,000 classes in their order, as folders have them: 155 in a batch of 256, where the full order has 226."""
    labels = np.arange(IMAGENET) // 1282
    order = labels[[key.position for key in islice(BlockSampler(IMAGENET, 0), 51_200)]]
    mix = [len(set(batch)) for batch in order.reshape(-1, 256).tolist()]
    assert 140 < np.mean(mix) < 170
