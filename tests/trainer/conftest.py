"""What several tests of the learner share: a model folder, ranks in Ray, and ranks in plain processes.

Imports are inside, so that tests without any of it stay quick.
"""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from local_ray import local_ray

if TYPE_CHECKING:
    from learner_runs import Run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a micro model and a tokenizer."""
    from micro_models import save_micro
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    save_micro(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    here = str(Path(__file__).parents[2])
    with local_ray(num_cpus=8, runtime_env={"env_vars": {"PYTHONPATH": here}}):
        yield


@pytest.fixture(scope="module")
def ranks(cluster: None) -> dict[int, list[Any]]:
    """One rank, and two ranks, that the tests of a module share: their imports take longer than the tests."""
    from learner_runs import run_config

    from trainer.learner import _actor

    config = run_config(Path("unused"))
    return {count: [_actor(config, index, None) for index in range(count)] for count in (1, 2)}


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


@pytest.fixture(scope="module")
def one(environment: None) -> "Iterator[Run]":
    """One rank in a process of its own, without Ray."""
    yield from _processes(1)


@pytest.fixture(scope="module")
def two(environment: None) -> "Iterator[Run]":
    yield from _processes(2)


def _processes(count: int) -> "Iterator[Run]":
    processes = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(count)]
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]

    def run(function: Callable[..., Any], *arguments: object) -> list[Any]:
        calls = [process.submit(function, index, port, *arguments) for index, process in enumerate(processes)]
        return [call.result(timeout=500) for call in calls]

    yield run
    for process in processes:
        process.shutdown(wait=False, cancel_futures=True)
