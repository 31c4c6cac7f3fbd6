"""What a push does around the transfer: pause, send, resume, compare; the transfer itself runs in test_training.py."""

import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest

from envs.decisions.settings import DecisionSettings, NodeSettings
from envs.types import EndReason
from rollout_workers.adapters import AdapterFile
from rollout_workers.fleet import FleetError
from rollout_workers.types import Completion, Node, TaskGroup, Tree
from trainer.learner import PushError, Sent
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
    def __init__(self, actors, log):
        self.actors, self.log, self.drains, self.causes = actors, log, True, []

    def ready(self):
        return self.actors

    def begin_work(self, holders):
        self.log.append(("work", len(holders)))

    def drain(self, wait_s):
        self.log.append(("drain", wait_s))
        return self.drains

    def open_gate(self):
        self.log.append(("open",))

    def get(self, reference, timeout_s, waits_for):
        return reference

    def wait_ready(self):
        self.log.append(("wait",))
        self.actors = [actor(self.log)]

    def restart(self, handles, cause):
        self.causes.append(cause)
        self.actors = [actor([]) for _ in handles]


class FakeLearner:
    def __init__(self, log, logprobs):
        self.log, self.answer, self.failures, self.turn = log, logprobs, 0, threading.RLock()

    def connect_push(self, link, actors, workers):
        self.log.append(("connect", link.backend, len(actors), workers))

    def push(self):
        self.log.append(("send",))
        if self.failures:
            self.failures -= 1
            raise PushError("the weight push failed: peer closed")
        return Sent(bytes=1000, seconds={"send": 0.5})

    def logprobs(self, sequences):
        assert list(sequences) == [([7, 5, 6], 2)]
        return [self.answer]


CONFIG = SimpleNamespace(
    typed=None,
    push_backend="gloo",
    seed=0,
    rollout=SimpleNamespace(tensor_parallel=1, temperature=1.0),
    push=SimpleNamespace(timeout_s=1.0, join_timeout_s=1.0, probe_prompts=1, probe_tokens=2, mode="keep"),
    guards=SimpleNamespace(max_logprob_diff=0.02, max_mean_logprob_diff=None),
)


def pusher(log, logprobs, mode="keep"):
    config = SimpleNamespace(**vars(CONFIG) | {"push": SimpleNamespace(**vars(CONFIG.push) | {"mode": mode})})
    made = WeightPusher(config, FakeLearner(log, logprobs), FakeFleet([actor(log)], log))
    made.use_probes([[7], [8]])
    return made


def test_engines_pause_before_and_resume_after_the_weights_arrive():
    log = []
    metrics = pusher(log, [-1.0, -2.01]).push(4)
    assert [entry[0] for entry in log] == ["connect", "pause", "send", "resume", "probe", "work"]
    assert log[0] == ("connect", "espalier_gloo", 1, 1)
    assert log[3] == ("resume", 4)
    assert metrics["push/max_abs_logprob_diff"] == pytest.approx(0.01)
    assert metrics["push/mean_abs_logprob_diff"] == pytest.approx(0.005)
    assert (metrics["push/bytes"], metrics["push/version"], metrics["push/send_s"]) == (1000.0, 4.0, 0.5)
    assert {"push/seconds", "push/pause_s", "push/resume_s", "push/probe_s"} <= metrics.keys()


def test_actors_are_joined_once_and_again_only_when_they_changed():
    log = []
    made = pusher(log, [-1.0, -2.0])
    made.push(1)
    made.push(2)
    assert [entry[0] for entry in log].count("connect") == 1
    made._fleet.actors = [actor(log)]
    made.push(3)
    assert [entry[0] for entry in log].count("connect") == 2


def test_an_engine_lost_while_it_is_compared_begins_the_push_again_once():
    class Dying(FakeFleet):
        deaths = 1

        def get(self, reference, timeout_s, waits_for):
            if "probe" in waits_for and self.deaths:
                self.deaths -= 1
                raise FleetError(f"failed while waiting for {waits_for}: the engine is dead")
            return reference

        def restart(self, handles, cause):
            self.causes.append(cause)
            self.actors = [actor(self.log) for _ in handles]

    log = []
    made = pusher(log, [-1.0, -2.0])
    made._fleet = Dying([actor(log)], log)
    metrics = made.push(4)
    assert made._fleet.causes == ["push of version 4 failed"]
    sent = ["connect", "pause", "send", "resume", "probe"]
    assert [entry[0] for entry in log] == [*sent, *sent, "work"]
    assert metrics["push/version"] == 4.0
    made._fleet.deaths = 2
    with pytest.raises(FleetError, match="sample probe tokens"):
        made.push(5)


@pytest.mark.parametrize("theirs", [[-1.0, -2.5], [-1.0, float("nan")]])
def test_disagreement_stops_the_run_with_a_sentence(theirs):
    with pytest.raises(RuntimeError, match=r"weights version 9 .* disagree by .* guards.max_logprob_diff=0.02"):
        pusher([], theirs).push(9)


@pytest.mark.parametrize(("bound", "stops"), [(0.004, True), (0.006, False)])
def test_the_mean_has_a_bound_of_its_own(bound, stops):
    """Differences of 0 and 0.01: no single one is beyond 0.02, and their mean is 0.005."""
    made = pusher([], [-1.0, -2.01])
    made._config.guards = SimpleNamespace(max_logprob_diff=0.02, max_mean_logprob_diff=bound)
    if not stops:
        made.push(1)
        return
    with pytest.raises(RuntimeError, match=r"0\.0050 nats in the mean .* guards\.max_mean_logprob_diff=0\.004"):
        made.push(1)


def test_probes_follow_the_deepest_path_that_can_go_on():
    tree = Tree(task_id="q", index=0, nodes=[
        Node(parent=-1, observation_ids=(1,)),
        Node(parent=0, token_ids=(2,), logprobs=(0.0,), versions=(0,), observation_ids=(3,)),
        Node(parent=1, token_ids=(4,), logprobs=(0.0,), versions=(0,), end=EndReason.ANSWERED, reward=1.0, score=1.0),
    ])  # fmt: skip
    assert probe_contexts([TaskGroup(task=None, trees=(tree,))], 3) == [[1, 2, 3]]
    tree.typed = True
    assert probe_contexts([TaskGroup(task=None, trees=(tree,))], 3) == [[3]], "a typed step sees its own prompt only"


def test_a_push_without_any_loaded_engine_waits_for_the_replacement():
    log = []
    made = pusher(log, [-1.0, -2.0])
    made._fleet.actors = []
    assert made.push(2)["push/version"] == 2.0
    assert [entry[0] for entry in log] == ["wait", "connect", "pause", "send", "resume", "probe", "work"]


def test_a_failed_push_replaces_the_actors_and_is_tried_once_more():
    log = []
    made = pusher(log, [-1.0, -2.0])
    made._learner.failures = 1
    metrics = made.push(2)
    assert made._fleet.causes == ["push of version 2 failed"]
    assert [entry[0] for entry in log] == ["connect", "pause", "send", "connect", "send", "work"]
    assert metrics["push/version"] == 2.0
    made._learner.failures = 2
    with pytest.raises(PushError, match="peer closed"):
        made.push(3)


@pytest.mark.parametrize("in_time", [True, False])
def test_drain_ends_branches_before_the_push_and_opens_the_gate_behind_it(in_time, caplog):
    log = []
    made = pusher(log, [-1.0, -2.0], mode="drain")
    made._fleet.drains = in_time
    metrics = made.push(1)
    assert [entry[0] for entry in log] == ["drain", "connect", "pause", "send", "resume", "open", "probe", "work"]
    assert log[0] == ("drain", 1.0)
    assert metrics["push/drained"] == in_time
    assert ("did not end within push.timeout_s=1 s" in caplog.text) is not in_time


def test_the_gate_opens_after_a_push_that_failed_too():
    log = []
    made = pusher(log, [-1.0, -2.0], mode="drain")
    made._learner.failures = 2
    with pytest.raises(PushError):
        made.push(1)
    assert log[-1] == ("open",)


def test_a_replacement_gets_the_weights_last_pushed_without_draining():
    log = []
    made = pusher(log, [-1.0, -2.0], mode="drain")
    made.push(3)
    log.clear()
    assert made.rejoin()
    assert [entry[0] for entry in log] == ["pause", "send", "resume", "probe", "work"]
    assert log[2] == ("resume", 3)


def test_a_replacement_waits_while_another_thread_has_the_learner():
    log = []
    made = pusher(log, [-1.0, -2.0])
    made.push(3)
    log.clear()
    answers = []
    with made._learner.turn:
        thread = threading.Thread(target=lambda: answers.append(made.rejoin()))
        thread.start()
        thread.join(10)
    assert (answers, log) == ([False], [])
    assert made.rejoin(), "the turn is free again"


class TypedLearner(FakeLearner):
    """Three adapters; `files` maps each to its content."""

    files: ClassVar = {"intent": b"i0", "policy": b"p00", "response": b"r000"}

    def adapters(self, known):
        self.log.append(("known", dict(known)))
        return {name: AdapterFile.of(content, known.get(name)) for name, content in self.files.items()}

    def logprobs(self, sequences, adapter=None):
        self.log.append(("score", adapter))
        return [self.answer for _ in sequences]


def typed_actor(log):
    made = actor(log)
    made.load_adapters = Call(log, "load")
    return made


def typed_pusher(log, backbone="frozen", actors=1, logprobs=(-1.0, -2.0)):
    names = ("intent", "policy", "response", "check")
    nodes = [
        {
            "name": name,
            "parent": None if name == "intent" else "intent",
            "instruction": "",
            "output_schema": {},
            "adapter": None if name == "check" else {"freeze": name == "policy"},
        }
        for name in names
    ]
    settings = DecisionSettings.model_construct(
        policy="typed", backbone=backbone, nodes=tuple(NodeSettings.model_validate(node) for node in nodes)
    )
    config = SimpleNamespace(**vars(CONFIG) | {"typed": settings})
    fleet = FakeFleet([typed_actor(log) for _ in range(actors)], log)
    made = WeightPusher(config, TypedLearner(log, list(logprobs)), fleet)
    made.use_probes([[7]])
    return made


def sent(log):
    """What actors were given, oldest first."""
    return [sorted(entry[1]) for entry in log if entry[0] == "load"]


def test_adapters_go_once_and_again_only_when_they_changed():
    log = []
    made = typed_pusher(log)
    first = made.push(0)
    assert [entry[0] for entry in log] == ["known", "pause", "load", "resume", *["probe"] * 4, *["score"] * 4, "work"]
    assert sent(log) == [["intent", "policy", "response"]]
    assert (first["push/adapters_sent"], first["push/bytes"]) == (3.0, 2 + 3 + 4)
    log.clear()
    made._learner.files = made._learner.files | {"intent": b"i1", "response": b"r1"}
    second = made.push(1)
    assert len(log[0][1]) == 3, "the learner is told what every actor has"
    assert sent(log) == [["intent", "response"]], "the adapter of policy is frozen"
    assert (second["push/adapters_sent"], second["push/bytes"]) == (2.0, 2 + 2)
    log.clear()
    third = made.push(2)
    assert (sent(log), third["push/adapters_sent"], third["push/bytes"]) == ([], 0.0, 0.0)


def test_a_replaced_actor_gets_all_adapters_and_the_others_none():
    log = []
    made = typed_pusher(log, actors=2)
    made.push(0)
    log.clear()
    fresh = typed_actor(log)
    made._fleet.actors = [made._fleet.actors[0], fresh]
    assert made.rejoin()
    assert log[0] == ("known", {}), "not every actor has them"
    assert sent(log) == [["intent", "policy", "response"]]
    log.clear()
    made.push(1)
    assert sent(log) == []


def test_after_a_failed_push_every_adapter_goes_again():
    log = []
    made = typed_pusher(log, "trained")
    made.push(0)
    made._fleet.restart = lambda handles, cause: None
    made._learner.failures = 1
    log.clear()
    made.push(1)
    assert sent(log) == [["intent", "policy", "response"]]


def test_new_weights_below_them_make_engines_take_all_adapters_again():
    log = []
    made = typed_pusher(log, "trained")
    first = made.push(0)
    assert [entry[0] for entry in log[:6]] == ["connect", "known", "pause", "send", "load", "resume"]
    assert first["push/bytes"] == 1000 + 9
    log.clear()
    made.push(1)
    assert sent(log) == [[]], "the engine has the files, and is told to read them"


def test_both_sides_are_compared_with_each_adapter_and_below_them():
    log = []
    made = typed_pusher(log, logprobs=(-1.0, -2.01))
    metrics = made.push(0)
    assert [entry[1:] for entry in log if entry[0] == "score"] == [("intent",), ("policy",), ("response",), (None,)]
    assert [entry[5:] for entry in log if entry[0] == "probe"] == [("intent",), ("policy",), ("response",), ()]
    assert len({entry[3] for entry in log if entry[0] == "probe"}) == 4, "each samples with a seed of its own"
    assert metrics["decision/response/max_abs_logprob_diff"] == pytest.approx(0.01)
    assert metrics["push/max_abs_logprob_diff"] == pytest.approx(0.01)
    with pytest.raises(RuntimeError, match=r"0\.5000 nats on a token's log-probability of node 'intent', more than"):
        typed_pusher([], logprobs=(-1.0, -2.5)).push(9)
