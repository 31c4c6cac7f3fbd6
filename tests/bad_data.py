"""Rows of `test_bad_input.py`: task files, corpora, retrievers, and code of the user's own."""

import json
from datetime import datetime

from bad_rows import (
    BARE,
    FOLDER,
    Bad,
    corpus,
    forbidden,
    gibibyte,
    line,
    lines,
    reward,
    rows,
    task,
    unreadable,
)

DATA: dict[str, Bad] = {
    # Task files, JSON Lines
    "no task file": Bad(says="env.train_tasks=train.jsonl {missing}", files={"train.jsonl": None}),
    "a folder instead of a task file": Bad(says="env.train_tasks=train.jsonl {missing}", files={"train.jsonl": FOLDER}),
    "a path that is too long": Bad(
        says=f"env.train_tasks={'x' * 300}.jsonl {{missing}}", args=[f"env.train_tasks={'x' * 300}.jsonl"]
    ),
    "an unknown kind of task file": Bad(
        says="env.train_tasks cannot be used: tasks.csv: unknown kind of task file; accepted: .jsonl, .parquet.",
        args=["env.train_tasks=tasks.csv"],
        files={"tasks.csv": "x"},
    ),
    "an empty task file": Bad(
        says=(
            "env.train_tasks cannot be used: train.jsonl has no tasks; expected one per line with the fields id, "
            "prompt, truth."
        ),
        files={"train.jsonl": ""},
    ),
    "blank lines only": Bad(
        says=(
            "env.eval_tasks cannot be used: heldout.jsonl has no tasks; expected one per line with the fields id, "
            "prompt, truth."
        ),
        files={"heldout.jsonl": "\n \r\n"},
    ),
    "a task without truth": line(
        {"id": "a", "prompt": "?"}, "field 'truth' is missing; required fields are id, prompt, truth."
    ),
    "a task without id": line(
        {"prompt": "?", "truth": "x"}, "field 'id' is missing; required fields are id, prompt, truth."
    ),
    "a task without prompt": line(
        {"id": "a", "truth": "x"}, "field 'prompt' is missing; required fields are id, prompt, truth."
    ),
    "an id twice": line(task(1), "id 't1' is already used in line 1; ids must be unique."),
    "an id that is a number": line(task(2, id=2), "field 'id' must be a text that is not empty."),
    "a blank id": line(task(2, id=" "), "field 'id' must be a text that is not empty."),
    "a blank prompt": line(task(2, prompt=" \n"), "the last message of 'prompt' must be the user's, and not empty."),
    "no messages": line(
        task(2, prompt=[]), "field 'prompt' must be a text or a list of messages with role and content."
    ),
    "a message of nobody": line(
        task(2, prompt=[{"role": "boss", "content": "Go"}]),
        "a message of 'prompt' needs a role among system, user, assistant, tool and a text content.",
    ),
    "the last message not the user's": line(
        task(2, prompt=[{"role": "assistant", "content": "Hi"}]),
        "the last message of 'prompt' must be the user's, and not empty.",
    ),
    "a blank truth": line(
        task(2, truth=["Germany", ""]), "field 'truth' must be a text or a list of texts, none of them empty."
    ),
    "no truths": line(task(2, truth=[]), "field 'truth' must be a text or a list of texts, none of them empty."),
    "a truth that is a number": line(
        task(2, truth=49), "field 'truth' must be a text or a list of texts, none of them empty."
    ),
    "meta that is a list": line(task(2, meta=[1]), "field 'meta' must be an object."),
    "NaN": line(json.dumps(task(2, meta={"p": float("nan")})), "not a JSON object: NaN is no number in JSON."),
    "a line that is cut off": line(
        '{"id": "t2", "prompt": "Where', "not a JSON object: Unterminated string starting at column 24."
    ),
    "a line that is a list": line([1, 2], "expected an object with the fields id, prompt, truth."),
    "a line nested too deeply": line("[" * 100000, "not a JSON object: nested too deeply."),
    "Latin-1": Bad(
        says="env.train_tasks cannot be used: train.jsonl line 1: not UTF-8 text (byte 0xf3 after 12 bytes).",
        files={"train.jsonl": '{"id": "Kraków"}\n'.encode("latin-1")},
    ),
    "UTF-16": Bad(
        says=(
            "env.train_tasks cannot be used: train.jsonl line 1: holds NUL bytes, as UTF-16 text does, or a file "
            "that was being written in a crash."
        ),
        files={"train.jsonl": lines(task(1)).encode("utf-16")},
    ),
    "NUL bytes": line(
        "\x00\x00\x00", "holds NUL bytes, as UTF-16 text does, or a file that was being written in a crash."
    ),
    "half a surrogate pair": line(
        '{"id": "t2", "prompt": "\\ud83d", "truth": "x"}',
        "holds half of a surrogate pair (an escape such as \\ud800), which is no text.",
    ),
    "a line of 1 GiB": Bad(
        says="{train} longer than 16,777,216 bytes, the most that a line may have.", files={"train.jsonl": gibibyte}
    ),
    "a fault among the held-out tasks": Bad(
        says=(
            "env.eval_tasks cannot be used: heldout.jsonl line 2: id 't1' is already used in line 1; ids must be "
            "unique."
        ),
        files={"heldout.jsonl": lines(task(1), task(1))},
    ),
    "fewer tasks than a step takes": Bad(
        says="tasks_per_step=4 must be at most 3, the number of tasks in env.train_tasks=train.jsonl.",
        args=["tasks_per_step=4"],
    ),
    "a task file whose disk fails": Bad(
        says="env.train_tasks cannot be used: train.jsonl cannot be read: Input/output error.",
        files={"train.jsonl": unreadable},
    ),
    "a task file that belongs to others": Bad(
        says="env.train_tasks cannot be used: train.jsonl cannot be read: Permission denied.",
        files={"train.jsonl": forbidden},
    ),
    # Task files, Parquet
    "text that calls itself Parquet": Bad(
        says="{parquet} cannot be read as Parquet: Parquet magic bytes not found in footer.",
        args=["env.train_tasks=train.parquet"],
        files={"train.parquet": lines(task(1))},
    ),
    "a Parquet file that is cut off": rows(
        "cannot be read as Parquet: Parquet magic bytes not found in footer.", task(1), cut=200
    ),
    "Parquet with other columns": rows(
        "row 1: field 'id' is missing; required fields are id, prompt, truth.", {"question": "?", "answer": "x"}
    ),
    "a value missing in Parquet": rows(
        "row 2: field 'truth' is missing; required fields are id, prompt, truth.", task(1), task(2, truth=None)
    ),
    "Parquet without rows": rows("has no tasks; expected one per line with the fields id, prompt, truth."),
    "bytes for an id in Parquet": rows("row 1: field 'id' must be a text that is not empty.", task(1, id=b"\xff")),
    "a date in Parquet": rows(
        "row 1: field 'meta' must hold what JSON can, and not a datetime.", task(1, meta={"d": datetime(2026, 3, 1)})
    ),
    "a row of 17 MiB in Parquet": rows(
        "row 2: longer than 16,777,216 bytes, the most that a row may have.",
        task(1),
        task(2, prompt="x" * (17 << 20)),
    ),
    "a folder instead of Parquet": Bad(
        says="env.train_tasks=train.parquet {missing}",
        args=["env.train_tasks=train.parquet"],
        files={"train.parquet": FOLDER},
    ),
    # Corpus and retriever
    "no corpus": Bad(says="env.retriever.corpus=corpus.jsonl {missing}", files={"corpus.jsonl": None}),
    "a folder instead of a corpus": Bad(
        says="env.retriever.corpus=corpus.jsonl {missing}", files={"corpus.jsonl": FOLDER}
    ),
    "an empty corpus": corpus(
        "\n", " corpus.jsonl has no documents; expected one JSON object per line with id, title, text."
    ),
    "a corpus that is no JSON": corpus(
        "id,title,text\n", ".jsonl line 1: not a JSON object: Expecting value at column 1."
    ),
    "a document without text": corpus(
        lines({"id": "1", "title": "Ulm"}), ".jsonl line 1: expected an object with the text fields id, title, text."
    ),
    "a document with a list for a title": corpus(
        lines({"title": ["U"], "text": "x"}), ".jsonl line 1: field 'title' must be a text."
    ),
    "a document with a list for an id": corpus(
        lines({"id": [], "text": "x"}), ".jsonl line 1: field 'id' must be a text or a number."
    ),
    "a document's id twice": corpus(
        lines({"id": 7, "text": "x"}, {"text": "y"}, {"text": "z"}, {"id": "7", "text": "w"}),
        ".jsonl line 4: id '7' is already used in line 1; ids must be unique.",
    ),
    "a corpus in Latin-1": corpus(
        "\n{ü}".encode("latin-1"), ".jsonl line 2: not UTF-8 text (byte 0xfc after 1 bytes)."
    ),
    "a retriever without host": Bad(
        says=(
            "env.retriever.url=http:///retrieve is not accepted: it must be an address such as "
            "http://10.0.0.5:8000/retrieve."
        ),
        args=["env=search_http", "env.retriever.url=http:///retrieve"],
        good=BARE,
    ),
    "a retriever's port that is none": Bad(
        says=(
            "env.retriever.url=http://host:80000/ is not accepted: it must be an address such as "
            "http://10.0.0.5:8000/retrieve."
        ),
        args=["env=search_http", "env.retriever.url=http://host:80000/"],
        good=BARE,
    ),
    "a retriever by another protocol": Bad(
        says=(
            "env.retriever.url='ftp://***@host/retrieve' is not accepted: it must be an address that begins with http."
        ),
        args=["env=search_http", "env.retriever.url=ftp://me:pw@host/retrieve"],
        good=BARE,
    ),
    "a retriever's address with a space": Bad(
        says=(
            "env.retriever.url=http://***@ho st/ is not accepted: it must be an address such as "
            "http://10.0.0.5:8000/retrieve."
        ),
        args=["env=search_http", "env.retriever.url='http://me:pw@ho st/'"],
        good=BARE,
    ),
    # Code of the user's own
    "a reward that cannot be imported": reward("no_such.reward", "cannot be imported: No module named 'no_such'."),
    "a reward that its module lacks": reward(
        "bad_code.gone", "cannot be imported: module 'bad_code' has no attribute 'gone'."
    ),
    "a reward without dots": reward("reward", "is not a dotted path such as my_package.rewards.brevity."),
    "a reward's file": reward("../bad_code.py", "is not a dotted path such as my_package.rewards.brevity."),
    "a relative reward": reward("..bad_code.fine", "is not a dotted path such as my_package.rewards.brevity."),
    "a reward that is a number": reward(
        "bad_code.number", "is not a function; accepted: a function of envs.rewards.Outcome."
    ),
    "a reward of two arguments": reward(
        "bad_code.greedy", "cannot be called with an Outcome: missing a required argument: 'task'."
    ),
    "a reward to be awaited": reward(
        "bad_code.later", "is a coroutine function; accepted: a function of envs.rewards.Outcome that returns a number."
    ),
    "a reward's module that raises": reward(
        "raising.fine", "cannot be imported: ZeroDivisionError: division by zero.", {"raising.py": "1 / 0\n"}
    ),
    "a reward's module that is no Python": reward(
        "no_python.fine",
        "cannot be imported: SyntaxError: invalid syntax (no_python.py, line 1).",
        {"no_python.py": "def fine(:\n"},
    ),
    "a reward's module that ends the process": reward(
        "ending.fine", "cannot be imported: SystemExit: 3.", {"ending.py": "raise SystemExit(3)\n"}
    ),
    "a custom reward without its path": Bad(
        says="env.reward.path must be set for env.reward.kind=custom, and only then.", args=["env.reward.kind=custom"]
    ),
    "a reward's path without its kind": Bad(
        says="env.reward.path must be set for env.reward.kind=custom, and only then.",
        args=["env.reward.path=bad_code.fine"],
    ),
    "an environment that cannot be imported": Bad(
        says="env.path 'no_such.world' cannot be imported: No module named 'no_such'.",
        args=["env=custom", "env.path=no_such.world"],
        good=BARE,
    ),
    "an environment that takes other options": Bad(
        says="env.path 'bad_code.world' cannot be called with height: missing a required argument: 'width'.",
        args=["env=custom", "env.path=bad_code.world", "env.options.height=3"],
        good=BARE,
    ),
    "an environment that is a module": Bad(
        says="env.path 'envs.types' is not a function; accepted: a function that makes an envs.types.Env.",
        args=["env=custom", "env.path=envs.types"],
        good=BARE,
    ),
}
