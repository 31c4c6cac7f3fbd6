"""Reservations on a real Ray whose GPUs are only logical: what is granted, what runs in it, and what is refused."""

from collections.abc import Iterator

import pytest
from local_ray import local_ray

from trainer import placement
from trainer.compose import compose

pytestmark = [pytest.mark.slow]

GPUS = ["learner=gpu", "rollout=gpu", "learner.ranks=2", "rollout.actors=1", "rollout.tensor_parallel=2"]


@pytest.fixture(scope="module")
def ray_with_gpus() -> Iterator[None]:
    with local_ray(num_cpus=2, num_gpus=4):
        yield


@pytest.mark.parametrize(("learner", "groups", "first"), [("any", 1, 2), ("same_node", 2, 0)])
def test_ranks_and_actors_run_in_what_is_reserved_for_them(ray_with_gpus, learner, groups, first):
    import ray

    from trainer.learner import _actor

    config = compose([*GPUS, f"cluster.learner={learner}"])
    reserved = placement.reserve(config)
    assert len({reserved.learner.id, reserved.rollout.id}) == groups
    assert reserved.first_rollout_bundle == first
    assert reserved.rollout.bundle_specs[first] == {"GPU": 2.0}
    ranks = [_actor(config, index, reserved.learner) for index in range(2)]
    assert len({ray.get(rank.meeting_point.remote(), timeout=300)[1] for rank in ranks}) == 2
    for rank in ranks:
        ray.kill(rank)
    placement.release(reserved)


def test_an_evaluation_reserves_no_learner(ray_with_gpus):
    reserved = placement.reserve(compose(GPUS), learner=False)
    assert (reserved.learner, reserved.first_rollout_bundle) == (None, 0)
    assert reserved.rollout.bundle_specs == [{"GPU": 2.0}]
    placement.release(reserved)


def test_what_is_taken_is_said_after_the_wait_and_nothing_stays_reserved(ray_with_gpus):
    settings = [*GPUS, "cluster.learner=same_node"]
    other = placement.reserve(compose(["rollout=gpu", "learner=gpu"]))  # 2 of the 4 GPUs
    sentence = (
        r"did not grant 2 bundles with 0 CPUs and 2 GPUs placed as STRICT_PACK and 1 bundles with 0 CPUs and 2 GPUs "
        r"placed as PACK within cluster\.wait_s=2 s"
    )
    with pytest.raises(RuntimeError, match=sentence):
        placement.reserve(compose([*settings, "cluster.wait_s=2"]))
    placement.release(other)
    placement.release(placement.reserve(compose(settings)))
