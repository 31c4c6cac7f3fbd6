"""Whatever stands in a file, a request or a reply: it is read, or refused by the declared error, in one sentence."""

import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from bad_rows import CONFIG, SHAPES, safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.corpus import read_corpus
from envs.decisions.contracts import Contract
from envs.decisions.settings import NodeSettings
from envs.http_retriever import HttpRetriever
from envs.masking import masked, masked_text
from envs.retrieval_server import read_request
from envs.retriever import LocalRetriever, RetrieverError
from envs.tasks import load_tasks
from trainer.compose import compose
from trainer.config import RunConfig
from trainer.decisions.feedback_files import Position, new_labels
from trainer.model_folder import check_model
from trainer.model_weights import shapes

quick = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.characters(codec=None), max_size=8)
"""Half surrogate pairs included."""
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def records(*names: str) -> st.SearchStrategy[Any]:
    """JSON objects in which some of these fields have some value."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))


@quick
@given(
    st.lists(records("id", "title", "text").map(json.dumps), max_size=3).map("\n".join).map(str.encode) | st.binary()
)
def test_corpora(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(content)
    try:
        passages = read_corpus(file)
    except ValueError as error:
        assert "corpus.jsonl" in str(error)  # noqa: PT017
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        LocalRetriever(passages).find(passages[0].text, 3)


@quick
@given(records("queries", "topk", "return_scores").map(json.dumps).map(str.encode) | st.binary(), texts)
def test_requests(body: bytes, query: str) -> None:
    try:
        asked = read_request(body)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert asked.queries


hits = (
    records("document", "score", "contents") | st.fixed_dictionaries({"document": records("id", "contents")}) | values
)


@quick
@given(
    st.sampled_from([200, 200, 200, 204, 302, 404]),
    (st.fixed_dictionaries({"result": st.lists(st.lists(hits, max_size=2), max_size=2)}) | values).map(json.dumps)
    | st.text(),
)
def test_replies(status: int, reply: str) -> None:
    client = HttpRetriever("http://me:pw@host/")
    try:
        found = client._read(status, "application/json", reply.encode("utf-8", "replace"), 3)
    except RetrieverError as error:
        assert "pw" not in str(error)  # noqa: PT017
    else:
        assert all(passage.text.encode() is not None for passage in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


KEYS = (
    *CONFIG,
    "text_config",
    "rope_scaling",
    "rope_parameters",
    "auto_map",
    "head_dim",
    "n_positions",
    "kv_lora_rank",
)


@quick
@given(
    records(*KEYS).map(lambda changes: CONFIG | changes) | values,
    records("model", "added_tokens") | st.fixed_dictionaries({"model": records("vocab")}) | values,
    records("chat_template") | values,
)
def test_model_folders(folder: Path, config: object, tokenizer: object, tokenizer_config: object) -> None:
    run = compose_once()
    for name, content in {"config": config, "tokenizer": tokenizer, "tokenizer_config": tokenizer_config}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(safetensors(SHAPES))
    problems, _ = check_model(run.model_copy(update={"model": run.model.model_copy(update={"path": str(folder)})}))
    assert all(problem.endswith(".") for problem in problems)


@cache
def compose_once() -> RunConfig:
    return compose(["experiment=quickstart", "name=r", "learner.lora.rank=4", "learner.lora.targets=[x]"])


headers = (
    records("a", "__metadata__") | st.fixed_dictionaries({"a": records("dtype", "shape", "data_offsets")}) | values
)


@quick
@given(headers.map(json.dumps).map(str.encode) | st.binary(), st.integers(0, 40), st.booleans())
def test_headers_of_weights(folder: Path, header: bytes, size: int, honest: bool) -> None:
    (folder / "model.safetensors").write_bytes(
        (len(header) if honest else size).to_bytes(8, "little") + header + bytes(size)
    )
    try:
        shapes(folder)
    except ValueError as error:
        assert "model.safetensors" in str(error)  # noqa: PT017


@quick
@given(values, texts)
def test_masking_never_fails(value: object, text: str) -> None:
    masked(value)
    assert masked_text(masked_text(text)) == masked_text(text)


SCHEMA = {"type": "object", "properties": {"of": {"type": "string", "maxLength": 5}}, "required": ["of"]}
NODE = NodeSettings(name="n", parent=None, instruction="Say.", output_schema=SCHEMA)


@quick
@given(
    records("of", "more").map(json.dumps) | values.map(json.dumps) | st.text(st.characters(codec=None)),
    st.sampled_from(["", "<|im_end|>", " \n", "[EOS] more", "}"]),
)
def test_answers_of_typed_nodes(answer: str, end: str) -> None:
    output, fault = Contract(NODE).read(answer + end)
    assert bool(fault) != isinstance(output.get("of"), str)
    assert len(fault) < 300


labels = st.fixed_dictionaries({"id": texts, "label": values}, optional={"note": values, "more": values}) | values


@quick
@given(
    st.lists(labels.map(json.dumps).map(str.encode) | st.binary(max_size=40), max_size=4).map(b"\n".join),
    st.integers(0, 200),
)
def test_label_files(tmp_path: Path, content: bytes, seen: int) -> None:
    """Also when reading begins anywhere, as after a file was changed by hand."""
    file = tmp_path / "labels.jsonl"
    file.write_bytes(content)
    for begin in (Position(), Position(bytes=seen, lines=1)):
        found = new_labels(file, begin)
        assert all(0 <= label.label <= 1 and label.id for label in found.labels)
        assert all(problem.startswith(f"{file} line ") for problem in found.problems)
        assert new_labels(file, found.position).labels == ()


_said = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
COLUMNS: list[tuple[pyarrow.DataType, object]] = [
    *((pyarrow.string(), "x"), (pyarrow.large_string(), "x"), (pyarrow.binary(), b"\xff"), (pyarrow.int64(), 7)),
    *((pyarrow.float64(), float("nan")), (pyarrow.bool_(), True), (pyarrow.date32(), 3), (pyarrow.time64("ns"), 1)),
    *((pyarrow.timestamp("ns", "Asia/Tokyo"), 1), (pyarrow.duration("s"), 2), (pyarrow.null(), None)),
    *((pyarrow.date32(), 10**8), (pyarrow.timestamp("s"), 10**15), (pyarrow.timestamp("us", "Nowhere/X"), 1)),
    *((pyarrow.decimal128(5, 2), Decimal("1.50")), (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), "x")),
    *((pyarrow.list_(pyarrow.string()), ["x", None]), (pyarrow.map_(pyarrow.string(), pyarrow.int32()), [("x", 1)])),
    *((_said, {"role": "user", "content": "x"}), (pyarrow.list_(_said), [{"role": "user", "content": "x"}])),
]
"""Types, each with a value."""
columns = st.sampled_from(COLUMNS)


@quick
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "prompt", "truth", "meta"), columns)), st.booleans())
def test_parquet_columns_of_any_type(
    tmp_path: Path, row: dict[str, tuple[pyarrow.DataType, object]], empty: bool
) -> None:
    file = tmp_path / "tasks.parquet"
    table = {name: pyarrow.array([None if empty else value], kind) for name, (kind, value) in row.items()}
    pyarrow.parquet.write_table(pyarrow.table(table), file)
    try:
        (task,) = load_tasks(file)
    except ValueError as error:
        assert "tasks.parquet" in str(error)  # noqa: PT017
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert json.loads(json.dumps(task.meta, allow_nan=False)) == task.meta
