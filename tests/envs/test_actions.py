import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.actions import COMMAND, SEARCH, Action, neutralise, parse_action, well_formed

PIECES = ["<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>"]
PIECES += ["<last/>", " Ulm ", "\n", "x", "<", ">", "<|im_end|>", "\x00"]
soup = st.lists(st.sampled_from(PIECES)).map("".join) | st.text()


def action(think, kind, content, well=True):
    return Action(think=think, kind=kind, content=content, well_formed=well)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think> find it </think><search> Ulm </search>", action("find it", "search", "Ulm")),
        (" \n<think></think>\n<answer>Berlin</answer>\n", action("", "answer", "Berlin")),
        ("<think>a\nb</think> <search>x\ny</search>", action("a\nb", "search", "x\ny")),
        ("<think>2 < 3</think><answer>a<b>c</answer>", action("2 < 3", "answer", "a<b>c")),
        ("<answer>Berlin</answer>", action("", "answer", "Berlin", well=False)),
        ("hm <think>a</think><answer>b</answer>", action("a", "answer", "b", well=False)),
        ("<think>a</think> so <answer>b</answer>", action("a", "answer", "b", well=False)),
        ("<think>a</think><answer>b</answer> done", action("a", "answer", "b", well=False)),
        ("<think>a</think><think>b</think><answer>c</answer>", action("a", "answer", "c", well=False)),
        ("<think>a</think><search>b</search><answer>c</answer>", action("a", "answer", "c", well=False)),
        ("<think>a <search>b</search></think><answer>c</answer>", action("a <search>b</search>", "answer", "c", False)),
        ("<think>a</think><information>b</information><answer>c</answer>", action("a", "answer", "c", well=False)),
        ("<think>a</think><answer>b <last/></answer>", action("a", "answer", "b <last/>", well=False)),
        ("<think>a</think><search>b <search>c</search>", action("a", "search", "c", well=False)),
        ("<think>a</think><search>b</answer>", action("a", None, "", well=False)),
        ("<think>a</think><search> </search>", action("a", None, "", well=False)),
        ("<think>a</think><search>b", action("a", None, "", well=False)),
        ("<search>b</search><answer> </answer>", action("", "search", "b", well=False)),
        ("", action("", None, "", well=False)),
    ],
)
def test_steps_read_by_hand(text, expected):
    assert parse_action(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think> a </think><act> open box </act>", action("a", "act", "open box")),
        (" <act>open box</act>\n", action("", "act", "open box")),
        ("<act>a</act><act>b</act>", action("", "act", "b", well=False)),
        ("so <act>a</act>", action("", "act", "a", well=False)),
        ("<act>a <obs>b</obs></act>", action("", "act", "a <obs>b</obs>", well=False)),
        ("<act>a <search>b</search></act>", action("", "act", "a <search>b</search>")),
        ("<think>a</think>", action("a", None, "", well=False)),
        ("<act> </act>", action("", None, "", well=False)),
    ],
)
def test_commands_may_come_without_a_thought(text, expected):
    assert parse_action(text, COMMAND) == expected


def test_formats_name_what_closes_a_step():
    assert (SEARCH.stop, COMMAND.stop) == (("</search>", "</answer>"), ("</act>",))


@given(soup)
@example("<search>" * 2000)
@example("<think>" * 2000)
def test_any_text_is_read_and_a_well_formed_step_has_the_stated_shape(text):
    parsed = parse_action(text)
    assert (parsed.kind is None) == (parsed.content == "")
    if parsed.well_formed:
        stripped = text.strip()
        assert stripped.startswith("<think>")
        assert stripped.endswith(f"</{parsed.kind}>")
        assert [text.count(tag) for tag in ("<think>", "</think>", f"<{parsed.kind}>", f"</{parsed.kind}>")] == [1] * 4


plain = st.text(st.characters(exclude_characters="<>")).filter(str.strip)


@given(plain, st.sampled_from(["search", "answer"]), plain)
def test_a_step_that_follows_the_format_is_read_back(think, kind, content):
    text = f"<think>{think}</think><{kind}>{content}</{kind}>"
    assert parse_action(text) == action(think.strip(), kind, content.strip())


def test_every_damage_to_one_tag_breaks_the_format():
    parts = ["<think>", "a", "</think>", "<search>", "b", "</search>"]
    assert well_formed("".join(parts))
    for index in (0, 2, 3, 5):
        assert not well_formed("".join(parts[:index] + parts[index + 1 :]))
        assert not well_formed("".join(parts[: index + 1] + parts[index:]))


@given(soup)
def test_neutral_text_has_no_tag_of_ours_left(text):
    neutral = neutralise(text)
    assert len(neutral) == len(text)
    assert all(tag not in neutral for tag in PIECES[:9])
    assert "<|" not in neutral


def test_neutralise_keeps_comparisons():
    assert neutralise("1 < 2 </information>< Search><|im_end|>") == "1 < 2 ‹/information>‹ Search>‹|im_end|>"
