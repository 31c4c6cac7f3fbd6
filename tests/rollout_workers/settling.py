"""When an engine of this process has told everything that it has counted."""

import asyncio

from rollout_workers.engine import GenerationEngine
from rollout_workers.engine_counts import EngineCounts

ROUND_TRIPS = 8
"""More than the steps that the engine has begun when the last request has its answer."""


async def settled(engine: GenerationEngine) -> EngineCounts:
    """The counters once the steps in hand are over and told: the engine answers between steps, and in order."""
    for _ in range(ROUND_TRIPS):
        await engine._llm.is_sleeping()
        await asyncio.sleep(0)
    return engine.counts
