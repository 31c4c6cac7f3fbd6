"""Ray's words about actors that died, as one line."""

import asyncio
import traceback

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rollout_workers import deaths


def died(message, never_started=False):
    return ActorDiedError(ActorDiedErrorContext(error_message=message, actor_id=b"a" * 16, never_started=never_started))


KILLED = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: ..."
NODE = "The actor died because its node has died. Node Id: f00\n\tthe actor's node was terminated: received SIGTERM"


def test_a_cause_is_one_line_without_guesses():
    away = ActorUnavailableError("RpcError: RPC error: Socket closed rpc_code: 14", b"a" * 16)
    assert deaths.cause(away) == "its process or its node does not answer"
    assert deaths.cause(died(KILLED)).startswith("its process ended unexpectedly")
    assert deaths.cause(died(NODE)) == "the actor's node was terminated: received SIGTERM"
    own = RayTaskError("work", "Traceback\n  File x\nRuntimeError: the engine is dead", RuntimeError())
    assert deaths.cause(own) == "RuntimeError: the engine is dead"


def test_the_frame_of_an_exception_group_is_no_cause():
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async def fail() -> None:
        raise RuntimeError("the engine is dead")

    with pytest.raises(ExceptionGroup) as failed:
        asyncio.run(work())
    text = "".join(traceback.format_exception(failed.value))
    assert text.rstrip().endswith("+------------------------------------")
    assert deaths.last_line(RuntimeError(text)) == "RuntimeError: the engine is dead"


def test_an_actor_lost_before_it_had_a_process_is_told_apart():
    assert deaths.never_ran(died(NODE, never_started=True))
    assert not deaths.never_ran(died(NODE))
    assert not deaths.never_ran(ActorUnavailableError("The actor never ran", b"a" * 16))
