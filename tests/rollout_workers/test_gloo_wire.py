"""The gloo wire: which parameters travel together, and that everybody receives what rank 0 sends, in its order."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rollout_workers import gloo_wire

LOOPBACK = "127.0.0.1"


def described(parameters):
    return [(name, tensor.dtype, tensor.shape) for name, tensor in parameters]


def test_consecutive_small_parameters_of_one_dtype_share_a_bucket():
    float32, bfloat16 = torch.float32, torch.bfloat16
    found = gloo_wire.buckets(
        [
            ("a", float32, (2, 3)),
            ("b", float32, ()),
            ("c", float32, (2,)),
            ("d", bfloat16, (2,)),
            ("e", bfloat16, (9,)),
        ],
        limit=30,  # bytes: a and b have 24 + 4, c 8, d 4, e 18
    )
    assert [bucket.names for bucket in found] == [("a", "b"), ("c",), ("d", "e")]
    assert (found[0].elements, found[0].bytes) == ([6, 1], 28)
    assert gloo_wire.buckets([("large", float32, (100,)), ("small", float32, (1,))], limit=30)[0].names == ("large",)
    assert gloo_wire.buckets([]) == []


def test_a_bucket_is_seen_as_its_parameters():
    bucket = gloo_wire.Bucket(dtype=torch.float32, names=("a", "b"), shapes=((2, 2), ()))
    parts = dict(bucket.parts(torch.arange(5.0)))
    assert parts["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert parts["b"].item() == 4.0


def meet(ranks, send, receive, timeout_s=30):
    """Rank 0 runs `send(group)`, the others `receive(group)`; returns what each gave or raised."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]

    def one(rank):
        group = gloo_wire.join(LOOPBACK, port, rank, ranks, timeout_s)
        try:
            return (receive if rank else send)(group)
        except RuntimeError as error:
            return error
        finally:
            group.shutdown()

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


@pytest.mark.parametrize("limit", [64, 1 << 20])
def test_every_rank_receives_the_parameters_of_rank_0_even_if_a_tensor_is_short_lived(limit):
    parameters = [(f"p{i}", torch.arange(i + 1.0) + 100 * i) for i in range(40)]
    parameters += [("half", torch.ones(3, dtype=torch.bfloat16)), ("strided", torch.arange(6.0).view(2, 3).T)]
    layout = gloo_wire.buckets(described(parameters), limit)

    def stream():
        for name, tensor in parameters:
            borrowed = tensor.clone()
            yield name, borrowed
            borrowed.fill_(-1)  # as when a gathered parameter is freed

    answers = meet(
        3,
        send=lambda group: gloo_wire.send(group, layout, stream()),
        receive=lambda group: list(gloo_wire.received(group, layout)),
    )
    for answer in answers[1:]:
        assert [name for name, _ in answer] == [name for name, _ in parameters]
        assert all(torch.equal(got, sent) for (_, got), (_, sent) in zip(answer, parameters, strict=True))


def test_a_receiver_that_leaves_in_the_middle_is_an_error_of_the_sender_within_the_limit():
    parameters = [(f"p{i}", torch.ones(4 << 20)) for i in range(4)]  # 16 MiB each: more than sockets hold
    layout = gloo_wire.buckets(described(parameters))
    answers = meet(
        2,
        send=lambda group: gloo_wire.send(group, layout, iter(parameters)),
        receive=lambda group: next(gloo_wire.received(group, layout[:1])),
        timeout_s=5,
    )
    assert isinstance(answers[0], RuntimeError)


def test_the_own_address_is_the_one_that_reaches_the_peer():
    assert gloo_wire.own_address(LOOPBACK) == LOOPBACK
