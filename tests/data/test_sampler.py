"""Order and keys."""

import random

import numpy as np
import pytest

from imnet_pl.data.keys import mix
from imnet_pl.data.loader import Requests
from imnet_pl.data.sampler import EvalSampler, TrainSampler


def positions(sampler):
    return [key.position for key in sampler]


def test_keys_do_not_collide_over_three_epochs_of_imagenet():
    indices = np.arange(1_300_000, dtype=np.uint64)
    keys = np.concatenate([mix(7, epoch, indices, 0) for epoch in range(3)])
    keys.sort()
    assert (keys[1:] != keys[:-1]).all()


def test_arrays_and_integers_give_the_same_keys():
    indices = np.arange(50, dtype=np.uint64)
    for seed, epoch, repeat in ((0, 0, 0), (-3, 5, 1), (2**63, 2**31, 9)):
        assert mix(seed, epoch, indices, repeat).tolist() == [
            mix(seed, epoch, i, repeat) for i in range(50)
        ]


def test_every_part_of_a_key_counts():
    assert (
        len({mix(1, 2, 3, 4), mix(2, 1, 3, 4), mix(1, 2, 4, 3), mix(1, 3, 2, 4)}) == 4
    )


def test_order_is_a_function_of_seed_and_epoch():  # S26
    first, second = TrainSampler(100, seed=3), TrainSampler(100, seed=3)
    orders = []
    for epoch in (0, 1, 0):
        for sampler in (first, second):
            sampler.set_epoch(epoch)
        random.random()
        orders.append(positions(first))
        assert orders[-1] == positions(second)
        assert sorted(orders[-1]) == list(range(100))
    assert orders[0] == orders[2] != orders[1]
    assert positions(TrainSampler(100, seed=4)) != orders[0]
    assert {key.epoch for key in first} == {0}


@pytest.mark.parametrize("start", [0, 1, 50, 99, 100])
def test_starts_anywhere_once(start):
    sampler = TrainSampler(100, seed=3)
    whole = positions(sampler)
    sampler.start = start
    assert positions(sampler) == whole[start:]
    assert positions(sampler) == whole
    assert len(sampler) == 100


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_train_on_equal_counts_without_overlap(world_size):
    ranks = [
        positions(TrainSampler(100, 3, rank, world_size)) for rank in range(world_size)
    ]
    assert {len(rank) for rank in ranks} == {100 // world_size}
    together = [index for rank in ranks for index in rank]
    assert len(set(together)) == len(together)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("num_samples", [25, 7, 5, 3])
def test_evaluation_takes_each_picture_once(num_samples, world_size):  # S35
    ranks = [EvalSampler(num_samples, rank, world_size) for rank in range(world_size)]
    together = [key.position for rank in ranks for key in rank]
    assert sorted(together) == list(range(num_samples))
    assert sum(map(len, ranks)) == num_samples


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("num_samples", [25, 8, 9, 3, 1])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
def test_every_rank_has_as_many_batches(num_samples, world_size, batch_size):
    requests = [
        Requests(EvalSampler(num_samples, rank, world_size), batch_size, False)
        for rank in range(world_size)
    ]
    sizes = [[len(request.keys) for request in rank] for rank in requests]
    assert {len(rank) for rank in sizes} == {len(requests[0])}
    assert sum(map(sum, sizes)) == num_samples
    assert all(0 not in rank[:-1] for rank in sizes)


def test_a_pass_that_starts_within_an_epoch_has_no_empty_batch():
    sampler = TrainSampler(20, 3, 1, 2)
    sampler.start = 6
    assert [len(r.keys) for r in Requests(sampler, 2, True)] == [2, 2]
