"""The faults that a run survives without losing a process: of environments, retrievers, disks and the object store.

A function returns what happened in words and raises Failed. What is promised: docs/faults.md.
"""

import contextlib
import random
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from rollout_workers.types import Node
from scripts.chaos_audit import trained
from scripts.chaos_faults import saved_step, stopped
from scripts.chaos_job import STEP_S, Job, claim
from scripts.chaos_places import SmallRay
from scripts.chaos_retriever import MoodyRetriever
from scripts.chaos_worlds import READ_AS, Strike, struck
from trainer.forest_file import TreeRecord, read_forest

MAX_OBSERVATION_TOKENS = 120
"""Of the quickstart."""
NOTES = {
    "env_raises": "RuntimeError: the world broke on caf",
    "env_hangs": "the environment did not answer within",
    "env_junk": r"RuntimeError: env\.path 'scripts\.chaos_worlds\.make_env': ",
    "retriever_down": "failed 2 times; the last time: [A-Z][A-Za-z]*Error",
    "retriever_slow": "failed 2 times; the last time: no answer within",
    "retriever_500": "failed 2 times; the last time: it answered with status 500",
    "retriever_invalid_json": "answered with application/json that is not JSON",
}
"""What the note of a branch says that ended in this fault."""
MARKS = {
    "env_huge_text": (r"a very long story.*\[\.\.\.\]", "ledger/observations_cut"),
    "env_not_utf8": (re.escape(READ_AS), "ledger/observations_repaired"),
}
"""What agents see of a text, as a pattern (long passages of the corpus are cut too), and the metric that counts it."""
WINDOW_STEPS = 4


def records(job: Job, steps: Sequence[int]) -> list[TreeRecord]:
    """The trees of these steps, as far as they are on record."""
    files = [job.folder / "forest" / f"step-{step:06d}.jsonl" for step in steps]
    return [record for file in files if file.exists() for record in read_forest(file)]


def leaves(found: Sequence[TreeRecord]) -> list[Node]:
    """Of all these trees."""
    return [node for record in found for node in record.tree.nodes if node.is_leaf]


def env_fault(job: Job, plan: Mapping[str, Strike], file: Path, fault: str, _chance: random.Random) -> str:
    """The branches that were struck must end as promised, or see what is promised, and no other ones.

    `plan` is also in `file`, beside which the environments write down whom they struck.
    """
    planned = {task: strike for task, strike in plan.items() if strike.fault == fault}
    steps = sorted({strike.step for strike in planned.values()})
    job.wait_for_step(steps[-1] + 1)
    trees = [record for record in records(job, steps) if record.task.id in planned]
    strikes = sum(count for task, count in struck(file).items() if task in planned)
    claim(trees and strikes, f"no branch of the {len(trees)} trees of steps {steps} was struck")
    ended, failed = leaves(trees), [node for node in leaves(trees) if node.note]
    where = f"{strikes} of {len(ended)} branches of the steps {', '.join(map(str, steps))}"
    if fault in NOTES:
        unlike = [node.note for node in failed if not re.search(NOTES[fault], node.note)]
        claim(not unlike, f"{len(unlike)} of {len(failed)} branches did not fail so, e.g. {(unlike or [''])[0]!a}")
        claim(len(failed) == strikes, f"{len(failed)} branches failed and {strikes} were struck")
        claim(len(ended) > strikes, "no branch of the struck tasks went on")
        claim("branches of train-" in job.said, "the log does not say that branches failed")
        claim(_sum(job, steps, "ledger/branches_failed") >= strikes, "ledger/branches_failed does not count them")
        claim(_sum(job, steps, "rollout/end_env_error_share"), "rollout/end_env_error_share does not count them")
        return f"{where} failed with {failed[0].note[:90]!a}"
    claim(not failed, f"{len(failed)} branches failed, e.g. {ascii(failed[0].note) if failed else ''}")
    seen = [text.observation for record in trees for text in record.texts[1:] if text.observation]
    mark, counter = MARKS[fault]
    longest = max((len(node.observation_ids) for record in trees for node in record.tree.nodes[1:]), default=0)
    claim(longest <= MAX_OBSERVATION_TOKENS, f"an observation has {longest} tokens")
    read = [text for text in seen if re.search(mark, text, re.DOTALL)]
    claim(len(read) == strikes, f"of {len(seen)} observations {len(read)} have {mark!r}, and {strikes} were struck")
    claim(_sum(job, steps, counter) >= strikes, f"{counter} does not count them")
    return f"{where} read {read[0][:40]!a}, {longest} tokens at most"


def last_step(plan: Mapping[str, Strike], fault: str) -> int:
    """The last training step that a fault strikes; 0 for none."""
    return max((strike.step for strike in plan.values() if strike.fault == fault), default=0)


def _sum(job: Job, steps: Sequence[int], metric: str) -> float:
    known = trained(job.folder)
    return sum(known[step].get(metric) or 0.0 for step in steps)


def healthy(job: Job, plan: Container[str], steps: Sequence[int]) -> None:
    """Raises Failed if a branch of a task without a plan failed in these steps."""
    well = [record for record in records(job, steps) if record.task.id not in plan]
    failed = [node.note for node in leaves(well) if node.note]
    claim(not failed, f"{len(failed)} branches failed without a reason, e.g. {(failed or [''])[0]!a}")


def retriever_fault(job: Job, server: MoodyRetriever, fault: str, chance: random.Random) -> str:
    """For some time every search meets the fault: branches that search must fail with its words, and no other ones."""
    when = job.moment(chance)
    first = job.step + 1

    def noted() -> list[Node]:
        steps = range(first, job.step + 1)
        return [node for node in leaves(records(job, steps)) if re.search(NOTES[fault], node.note)]

    with server.mood(fault):
        job.wait(lambda: noted() or job.step >= first + WINDOW_STEPS, "a branch that meets the fault")
    claim(found := noted(), f"no branch of steps {first} to {job.step} met the fault")
    counted = _sum(job, range(first, job.step + 1), "ledger/branches_failed")
    claim(counted >= len(found), f"ledger/branches_failed counts {counted:g} of {len(found)}")
    return f"from {when} on, {len(found)} branches failed with {found[0].note[-70:]!r}; the steps went on"


def retriever_gone(job: Job, server: MoodyRetriever, chance: random.Random, max_share: float) -> str:
    """The retriever stays down, so that too many branches fail: the run must end with code 1 and say why."""
    when, why = job.moment(chance), NOTES["retriever_down"]
    with server.mood("retriever_down"):
        said = rf"\d+% of the branches of train-\d+ .*, more than env\.max_error_share={max_share:g}, e\.g\. .*{why}"
        sentence = stopped(job, said)
    return f"from {when} on, exit code 1 ({sentence[:160]})"


def checkpoint_fault(job: Job, chance: random.Random, place: contextlib.AbstractContextManager[None], why: str) -> str:
    """For some time checkpoints cannot be written: each costs a warning, and the next that can be is written."""
    when = job.moment(chance)
    pattern = rf"the checkpoint of step (\d+) could not be written: .*{why}"
    heard = len(re.findall(pattern, job.said))
    with place:
        job.wait(lambda: len(re.findall(pattern, job.said)) > heard, f"a warning with {why!r}", STEP_S)
        lost, kept = int(re.findall(pattern, job.said)[-1]), saved_step(job)
        claim(kept and kept < lost, f"checkpoint {lost} could not be written and {kept} is the newest")
    job.wait(lambda: saved_step(job) > lost, "a checkpoint after that", STEP_S)
    job.wait(lambda: job.counted("checkpoint/failed"), "checkpoint/failed among the metrics", STEP_S)
    return f"from {when} on: the checkpoint of step {lost} was lost with a warning, that of {saved_step(job)} written"


def store_full(job: Job, chance: random.Random, cluster: SmallRay) -> str:
    """While another job holds the object store, the run's objects go to the disk and its steps go on."""
    when = job.moment(chance)
    with cluster.full_store() as said:
        step = job.step
        job.wait_for_step(step + 3)
        claim(job.newest("system/object_store_disk_mib"), "system/object_store_disk_mib does not show it")
    claim("WARNING Ray's object store is full: " in job.said, "the log does not say that the store is full")
    return f"from {when} on ({said}): three steps were trained meanwhile"
