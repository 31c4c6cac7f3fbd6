"""What a push does around the transfer: pause, send, resume, compare; the transfer itself runs in test_training.py."""

from types import SimpleNamespace

import pytest

from envs.types import EndReason
from rollout_workers.types import Completion, Node, TaskGroup, Tree
from trainer.learner import PushError
from trainer.push import WeightPusher, probe_contexts


class Call:
    def __init__(self, log, name, answer=None):
        self.log, self.name, self.answer = log, name, answer

    def remote(self, *arguments):
        self.log.append((self.name, *arguments))
        return self.answer


def actor(log):
    sample = Completion(
        token_ids=(5, 6), logprobs=(-1.0, -2.0), versions=(1, 1), text="", finished="length", prompt_tokens=1,
        cached_tokens=0,
    )  # fmt: skip
    return SimpleNamespace(pause=Call(log, "pause"), resume=Call(log, "resume"), probe=Call(log, "probe", [sample]))


class FakeFleet:
    def __init__(self, actors):
        self.actors = actors

    def ready(self):
        return self.actors

    def get(self, reference, timeout_s, waits_for):
        return reference

    def restart(self, cause):
        log = []
        self.causes = [*getattr(self, "causes", []), cause]
        self.actors = [actor(log)]


class FakeLearner:
    def __init__(self, log, logprobs):
        self.log, self.answer, self.failures = log, logprobs, 0

    def connect_push(self, link, actors, workers):
        self.log.append(("connect", link.backend, len(actors), workers))

    def push(self):
        self.log.append(("send",))
        if self.failures:
            self.failures -= 1
            raise PushError("the weight push failed: peer closed")
        return 1000

    def logprobs(self, sequences):
        assert list(sequences) == [([7, 5, 6], 2)]
        return [self.answer]


CONFIG = SimpleNamespace(
    push_backend="gloo",
    seed=0,
    rollout=SimpleNamespace(tensor_parallel=1, temperature=1.0),
    push=SimpleNamespace(timeout_s=1.0, probe_prompts=1, probe_tokens=2),
    guards=SimpleNamespace(max_logprob_diff=0.02),
)


def pusher(log, logprobs):
    made = WeightPusher(CONFIG, FakeLearner(log, logprobs), FakeFleet([actor(log)]))
    made.use_probes([[7], [8]])
    return made


def test_engines_pause_before_and_resume_after_the_weights_arrive():
    log = []
    metrics = pusher(log, [-1.0, -2.01]).push(4)
    assert [entry[0] for entry in log] == ["connect", "pause", "send", "resume", "probe"]
    assert log[0] == ("connect", "espalier_gloo", 1, 1)
    assert log[3] == ("resume", 4)
    assert metrics["push/max_abs_logprob_diff"] == pytest.approx(0.01)
    assert metrics["push/mean_abs_logprob_diff"] == pytest.approx(0.005)
    assert (metrics["push/bytes"], metrics["push/version"]) == (1000.0, 4.0)


def test_actors_are_joined_once_and_again_only_when_they_changed():
    log = []
    made = pusher(log, [-1.0, -2.0])
    made.push(1)
    made.push(2)
    assert [entry[0] for entry in log].count("connect") == 1
    made._fleet.actors = [actor(log)]
    made.push(3)
    assert [entry[0] for entry in log].count("connect") == 2


@pytest.mark.parametrize("theirs", [[-1.0, -2.5], [-1.0, float("nan")]])
def test_disagreement_stops_the_run_with_a_sentence(theirs):
    with pytest.raises(RuntimeError, match=r"weights version 9 .* disagree by .* guards.max_logprob_diff=0.02"):
        pusher([], theirs).push(9)


def test_probes_follow_the_deepest_path_that_can_go_on():
    tree = Tree(task_id="q", index=0, nodes=[
        Node(parent=-1, observation_ids=(1,)),
        Node(parent=0, token_ids=(2,), logprobs=(0.0,), versions=(0,), observation_ids=(3,)),
        Node(parent=1, token_ids=(4,), logprobs=(0.0,), versions=(0,), end=EndReason.ANSWERED, reward=1.0, score=1.0),
    ])  # fmt: skip
    assert probe_contexts([TaskGroup(task=None, trees=(tree,))], 3) == [[1, 2, 3]]


def test_a_failed_push_replaces_the_actors_and_is_tried_once_more():
    log = []
    made = pusher(log, [-1.0, -2.0])
    made._learner.failures = 1
    metrics = made.push(2)
    assert made._fleet.causes == ["push of version 2 failed"]
    assert [entry[0] for entry in log] == ["connect", "pause", "send", "connect", "send"]
    assert metrics["push/version"] == 2.0
    made._learner.failures = 2
    with pytest.raises(PushError, match="peer closed"):
        made.push(3)
