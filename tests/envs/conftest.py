import pytest
from hypothesis import settings

from envs.shop.prepare import prepare
from envs.textworld_games import make_games
from envs.textworld_maker import Difficulty

settings.register_profile("envs", deadline=None)  # a busy machine is no failure
settings.load_profile("envs")


@pytest.fixture(scope="session")
def adventures(tmp_path_factory):
    """A folder with four training and two held-out games of 5 and 6 steps, made once."""
    out = tmp_path_factory.mktemp("textworld")
    levels = [Difficulty(steps=steps, rooms=2, things=6) for steps in (5, 6)]
    make_games(out, {"train": 4, "heldout": 2}, levels, seed=0, processes=1)
    return out


@pytest.fixture(scope="session")
def shop_data(tmp_path_factory):
    """A folder with the database of a small shop, 66 training and 44 held-out tickets, made once."""
    out = tmp_path_factory.mktemp("shop")
    prepare(out, customers=120, orders=400, train=66, heldout=44, seed=3)
    return out
