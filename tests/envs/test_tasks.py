import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.tasks import chosen_tasks, load_tasks
from envs.types import Message, Task

GOOD = {"id": "a", "prompt": "Where ?", "truth": "Ulm", "meta": {"hops": 1}}
TASK = Task(id="a", prompt=(Message(role="user", content="Where ?"),), truth=("Ulm",), meta={"hops": 1})


def jsonl(tmp_path, *lines):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def without(name):
    return {key: value for key, value in GOOD.items() if key != name}


def test_jsonl(tmp_path):
    assert load_tasks(jsonl(tmp_path, GOOD, "", GOOD | {"id": "b"}))[0] == TASK
    assert [task.id for task in load_tasks(jsonl(tmp_path, GOOD, GOOD | {"id": "b"}), limit=1)] == ["a"]


def chosen(sources, count):
    """Places of the chosen tasks, for one letter per task that names its source; a dot names none."""
    tasks = [
        Task(id=str(place), prompt=TASK.prompt, truth=("x",), meta={} if source == "." else {"source": source})
        for place, source in enumerate(sources)
    ]
    return "".join(task.id for task in chosen_tasks(tasks, count))


@pytest.mark.parametrize(
    ("sources", "count", "places"),
    [
        (".....", 3, "012"),  # no sources: the first ones
        ("aaaaa", 3, "012"),
        ("aaaabcc", 5, "01456"),  # 2 + 1 + 2: b has no more
        ("aaaabcc", 3, "045"),
        ("aaaabcc", 4, "0145"),  # the fourth is the second of a, since it comes first
        ("aaaabcc", 6, "012456"),
        ("aaaabcc", 9, "0123456"),
        ("abab..ab", 3, "014"),  # tasks without a source are a source
    ],
)
def test_each_source_gives_equally_many_tasks(sources, count, places):
    assert chosen(sources, count) == places


def test_messages_and_several_truths(tmp_path):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    (task,) = load_tasks(jsonl(tmp_path, {"id": "a", "prompt": messages, "truth": ["x", "y"]}), instruction="Think.")
    assert task.prompt == (Message(role="system", content="S"), Message(role="user", content="Think.\n\nQ"))
    assert (task.truth, task.meta) == (("x", "y"), {})


def test_parquet(tmp_path):
    rows = [GOOD, {"id": "b", "prompt": "Q", "truth": "x", "meta": None}]
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    one, two = load_tasks(path)
    assert one == TASK
    assert (two.truth, two.meta) == (("x",), {})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([GOOD, {"id": "b", "prompt": "Q"}]), path)
    with pytest.raises(ValueError, match=r"tasks.parquet row 2: field 'truth' is missing"):
        load_tasks(path)


def test_the_sentence_for_a_missing_field(tmp_path):
    path = jsonl(tmp_path, *(GOOD | {"id": str(number)} for number in range(6)), without("truth"))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        load_tasks(path)
    assert str(caught.value) == f"{path} line 7: field 'truth' is missing; required fields are id, prompt, truth"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not a JSON object"),
        ("[" * 100_000, "line 2: not a JSON object"),
        ("[]", "line 2: expected an object"),
        (without("id"), "line 2: field 'id' is missing"),
        (without("prompt"), "line 2: field 'prompt' is missing"),
        (GOOD, "line 2: id 'a' is already used in line 1"),
        (GOOD | {"id": 3}, "line 2: field 'id' must be a text"),
        (GOOD | {"id": "b", "prompt": ""}, "line 2: the last message"),
        (GOOD | {"id": "b", "prompt": []}, "line 2: field 'prompt' must be"),
        (GOOD | {"id": "b", "prompt": ["x"]}, "line 2: a message of 'prompt'"),
        (GOOD | {"id": "b", "prompt": [{"role": "boss", "content": "x"}]}, "line 2: a message of 'prompt'"),
        (GOOD | {"id": "b", "prompt": [{"role": ["x"], "content": "x"}]}, "line 2: a message of 'prompt'"),
        (GOOD | {"id": "b", "prompt": [{"role": "assistant", "content": "x"}]}, "line 2: the last message"),
        (GOOD | {"id": "b", "truth": []}, "line 2: field 'truth' must be"),
        (GOOD | {"id": "b", "truth": [3]}, "line 2: field 'truth' must be"),
        (GOOD | {"id": "b", "truth": None}, "line 2: field 'truth' must be"),
        (GOOD | {"id": "b", "meta": []}, "line 2: field 'meta' must be"),
    ],
)
def test_one_sentence_names_file_and_line(tmp_path, line, message):
    with pytest.raises(ValueError, match=f"tasks.jsonl {message}") as caught:
        load_tasks(jsonl(tmp_path, GOOD, line))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_tasks(tmp_path):
    with pytest.raises(ValueError, match="has no tasks"):
        load_tasks(jsonl(tmp_path, ""))
    with pytest.raises(ValueError, match=r"nowhere.jsonl cannot be read"):
        load_tasks(tmp_path / "nowhere.jsonl")
    with pytest.raises(ValueError, match=r"accepted: .jsonl, .parquet"):
        load_tasks(tmp_path / "tasks.csv")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"folder.jsonl cannot be read"):
        load_tasks(tmp_path / "folder.jsonl")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"broken.parquet cannot be read as Parquet"):
        load_tasks(broken)
    with pytest.raises(ValueError, match=r"nowhere.parquet cannot be read"):
        load_tasks(tmp_path / "nowhere.parquet")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=6,
)
records = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("id", "prompt", "truth", "meta"), json_values | st.just("a"))
)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_folder
@given(content=st.lists(records.map(json.dumps) | st.text(), max_size=3).map("\n".join).map(str.encode) | st.binary())
def test_any_file_loads_or_says_why_in_one_sentence(tmp_path, content):
    for path in (tmp_path / "fuzz.jsonl", tmp_path / "fuzz.parquet"):
        path.write_bytes(content)
        try:
            assert load_tasks(path)
        except ValueError as error:
            assert "fuzz." in str(error) and "\n" not in str(error)  # noqa: PT017, PT018
