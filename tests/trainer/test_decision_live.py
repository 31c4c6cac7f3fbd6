"""Changing settings during a run: the watched file, what it accepts and refuses, and the command that writes it."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typed_forests import FAN, decision, typed_config

from envs.decisions.settings import DecisionSettings
from trainer.decisions.live import LiveFile, main, parsed
from trainer.decisions.live_settings import LiveError, changed, live_keys, value_of

DECIDED = decision(FAN)


def set_to(**wanted: object) -> DecisionSettings:
    keys = {key.replace("__", "."): value for key, value in wanted.items()}
    return changed(DECIDED, keys)[0]


def test_every_live_key_can_be_changed_and_nothing_else_changes() -> None:
    for key in live_keys(DECIDED):
        after, (change,) = changed(DECIDED, {key: 0.5})
        assert value_of(after, key) == 0.5
        assert (change.key, change.old, change.new) == (key, value_of(DECIDED, key), 0.5)
        assert all(value_of(after, other) == value_of(DECIDED, other) for other in live_keys(DECIDED) if other != key)
    assert len(live_keys(DECIDED)) == 4 * 5 + 5


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("lookup.rewards.weight", -1, "lookup.rewards.weight=-1 is not accepted: it must be a number of at least 0."),
        ("lookup.rewards.weight", "two", "lookup.rewards.weight='two' is not accepted: it must be a number of"),
        ("lookup.rewards.weight", True, "lookup.rewards.weight=true is not accepted: it must be a number of"),
        ("decay", 0, "decay=0 is not accepted: it must be a number above 0 and of at most 1."),
        (
            "intent.coefficients.clip_low", 1.5,
            "intent.coefficients.clip_low=1.5 is not accepted: it must be a number of at least 0 and below 1 or null.",
        ),
        ("levels.human", None, "levels.human=null is not accepted: it must be a number of at least 0."),
        ("decay_root", float("nan"), "decay_root=nan is not accepted: it must be a number above 0."),
        ("contracts", "strict", "contracts cannot be changed during a run: the keys are intent.rewards.weight, "),
        ("lookup.weight", 2, "lookup.weight cannot be changed during a run: lookup accepts lookup.rewards.weight, "),
        ("levels.others", 2, "levels accepts levels.automatic, levels.human and levels.rules."),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_one_sentence(key: str, value: object, sentence: str) -> None:
    with pytest.raises(LiveError) as raised:
        changed(DECIDED, {"intent.rewards.weight": 3, key: value})
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_null_gives_a_coefficient_back_to_the_loss_section() -> None:
    own = set_to(lookup__coefficients__entropy_coef=0.3)
    back, (change,) = changed(own, {"lookup.coefficients.entropy_coef": None})
    assert back == DECIDED
    assert str(change) == "lookup.coefficients.entropy_coef 0.3 → null"


def watched(tmp_path: Path) -> LiveFile:
    return LiveFile(tmp_path)


def test_the_file_is_taken_over_once_and_again_when_it_is_written_again(tmp_path: Path) -> None:
    file = watched(tmp_path)
    assert file.look(DECIDED).settings == DECIDED, "without a file"
    (tmp_path / "live.yaml").write_text("lookup: {rewards: {weight: 2}}\nlevels.human: 0.4\n")
    first = file.look(DECIDED)
    assert [str(change) for change in first.changes] == ["lookup.rewards.weight 1 → 2", "levels.human 0.3 → 0.4"]
    assert (first.settings.nodes[1].rewards.weight, first.settings.levels.human) == (2.0, 0.4)
    assert file.look(first.settings).changes == ()
    (tmp_path / "live.yaml").write_text("levels.human: 0.5\n")
    second = file.look(first.settings)
    assert [str(change) for change in second.changes] == ["levels.human 0.4 → 0.5"]
    assert second.settings.nodes[1].rewards.weight == 2.0, "what is taken out of the file stays"
    assert watched(tmp_path).look(second.settings).changes == (), "after a resume nothing changes anew"


def test_json_is_accepted_too(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text('{"decay":\t0.5}')
    assert watched(tmp_path).look(DECIDED).settings.decay == 0.5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("lookup.rewards.weight: 2\ndecay: 7\n", "decay=7 is not accepted: it must be a number above 0 and of at"),
        ("decay: [1\n", "it is no YAML ("),
        ("- 1\n", "it must hold keys with values"),
        ("", None),
        ("decay: ${oc.env:HOME}\n", "decay='${oc.env:HOME}' is not accepted"),
    ],
)
def test_a_file_with_a_fault_changes_nothing_and_warns_once(tmp_path: Path, content: str, said: str | None) -> None:
    (tmp_path / "live.yaml").write_text(content)
    file = watched(tmp_path)
    seen = file.look(DECIDED)
    assert (seen.settings, seen.changes) == (DECIDED, ())
    assert (said in seen.warning) if said else not seen.warning
    assert file.look(DECIDED).warning == "", "told once"
    (tmp_path / "live.yaml").write_text("decay: 0.5\n")
    assert file.look(DECIDED).settings.decay == 0.5


def run_folder(tmp_path: Path, decided: DecisionSettings | None = DECIDED) -> Path:
    settings = typed_config(DECIDED).model_dump(mode="json")
    settings["decision"] = None if decided is None else decided.model_dump(mode="json")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(settings)))
    return tmp_path


def test_the_command_writes_what_the_run_takes_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path)
    assert main([str(folder), "lookup.rewards.weight=2", "shipping.coefficients.entropy_coef=0.35"]) == 0
    assert "lookup.rewards.weight 1 → 2; shipping.coefficients.entropy_coef null → 0.35." in capsys.readouterr().out
    assert main([str(folder), "decay=0.5"]) == 0
    found = watched(folder).look(DECIDED)
    assert len(found.changes) == 3, "what the file had stays in it"
    assert found.settings.nodes[2].coefficients.entropy_coef == 0.35
    assert list(folder.glob("*.part")) == []
    content = (folder / "live.yaml").read_bytes()
    assert parsed(folder / "live.yaml", content)["decay"] == 0.5
    (folder / "live.yaml").rename(folder / "live.json")
    (folder / "live.json").write_text(json.dumps({"decay": 0.5}))
    assert main([str(folder), "decay_root=1"]) == 0
    assert json.loads((folder / "live.json").read_text()) == {"decay": 0.5, "decay_root": 1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lookup.rewards.weight=-2"], "lookup.rewards.weight=-2 is not accepted"),
        (["lookup.rewards.weight"], "a setting is written key=value"),
        (["decay=.5x"], "decay='.5x' is not accepted"),
    ],
)
def test_the_command_writes_nothing_that_would_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([str(run_folder(tmp_path)), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "live.yaml").exists()


def test_the_command_needs_a_run_of_a_decision_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), "decay=1"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main([str(run_folder(tmp_path, None)), "decay=1"]) == 2
    assert "has no decision section" in capsys.readouterr().err
