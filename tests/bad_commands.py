"""Rows of `test_bad_input.py`: commands other than training."""

from bad_rows import Bad, other, stored

import envs.check
import envs.convert
import envs.prepare
import envs.retrieval_server
import trainer.evaluate
import trainer.report

COMMANDS: dict[str, Bad] = {
    "convert: no name": other(
        envs.convert.main,
        "error: 'train.jsonl' is no input: write NAME=FILE, e.g. hotpotqa=hotpotqa.jsonl",
        "out.jsonl",
        "train.jsonl",
    ),
    "convert: no file": other(
        envs.convert.main, "error: none.jsonl cannot be read: No such file or directory", "out.jsonl", "a=none.jsonl"
    ),
    "convert: no field": other(
        envs.convert.main,
        "error: train.jsonl line 1: there is no field 'question'; see --question and --answers",
        "out.jsonl",
        "a=train.jsonl",
    ),
    "convert: a file for a folder": other(
        envs.convert.main,
        "error: train.jsonl/out.jsonl cannot be written: File exists",
        "train.jsonl/out.jsonl",
        "a=train.jsonl",
    ),
    "prepare: an unknown family": other(
        envs.prepare.main,
        (
            "error: unknown family 'nope'; accepted: city_country, city_timezone, city_population, country_capital, "
            "country_currency, country_continent, country_calling_code, country_neighbour, country_peak, "
            "country_domain, capital_timezone, capital_population, neighbour_capital, neighbour_currency, "
            "neighbour_calling_code, born_earlier"
        ),
        "--out",
        "o",
        "--families",
        "nope",
    ),
    "prepare: a file for the folder": other(
        envs.prepare.main,
        "error: --out train.jsonl is a file: it must be a folder, which is made when it does not exist",
        "--out",
        "train.jsonl",
        "--train",
        "1",
    ),
    "prepare: no questions": other(
        envs.prepare.main, "error: --train 0 --heldout 400: both must be at least 1", "--out", "o", "--train", "0"
    ),
    "check: no environment": other(
        envs.check.main,
        "error: env.path 'no_such.world' cannot be imported: No module named 'no_such'",
        "no_such.world",
        "--tasks",
        "train.jsonl",
    ),
    "check: options that are no JSON": other(
        envs.check.main,
        "error: --options '[3' is not JSON: Expecting ',' delimiter: line 1 column 3 (char 2)",
        "bad_code.world",
        "--options",
        "[3",
    ),
    "check: options that are no object": other(
        envs.check.main,
        "error: --options '[3]' is not a JSON object such as {\"width\": 3}",
        "bad_code.world",
        "--options",
        "[3]",
    ),
    "check: an environment that takes options": other(
        envs.check.main,
        (
            "error: env.path 'bad_code.world' does not accept env.options={}: world() missing 1 required positional "
            "argument: 'width'"
        ),
        "bad_code.world",
        "--tasks",
        "train.jsonl",
    ),
    "check: no environment's name": other(
        envs.check.main,
        "error: settings world.json: env.name must be search, textworld, custom or decision",
        "world.json",
        "--tasks",
        "none.jsonl",
        world__json="{}",
    ),
    "check: settings that are no YAML": other(
        envs.check.main,
        "error: settings world.yaml cannot be read: not YAML: while parsing a flow sequence",
        "world.yaml",
        world__yaml="name: [search",
    ),
    "evaluate: no run": other(
        trainer.evaluate.main, "model is not the folder of a finished run: it needs config.yaml and export/.", "model"
    ),
    "evaluate: an unknown key": other(
        trainer.evaluate.main,
        (
            "Unknown key evaluation.task (did you mean evaluation.tasks?): evaluation accepts every, sample_trees "
            "and tasks."
        ),
        ".",
        "evaluation.task=3",
        config__yaml=stored,
    ),
    "evaluate: no sign": other(
        trainer.evaluate.main,
        "Cannot read 'evaluation.tasks': a setting is written key=value.",
        ".",
        "evaluation.tasks",
        config__yaml=stored,
    ),
    "evaluate: settings that are no YAML": other(
        trainer.evaluate.main,
        "config.yaml and the settings given cannot be read: while parsing a flow sequence.",
        ".",
        config__yaml="seed: [0\n",
    ),
    "evaluate: settings that are a list": other(
        trainer.evaluate.main,
        "config.yaml holds no settings: it must be what a run writes there.",
        ".",
        config__yaml="[]\n",
    ),
    "evaluate: no held-out tasks": other(
        trainer.evaluate.main,
        (
            "env.eval_tasks=heldout.jsonl {missing}\n"
            "{corpus} corpus.jsonl has no documents; expected one JSON object per line with id, title, text."
        ),
        ".",
        config__yaml=stored,
        heldout__jsonl=None,
        corpus__jsonl="",
    ),
    "report: no run": other(
        trainer.report.main, "runs/none is not a run folder; give the path of a folder such as runs/<name>", "runs/none"
    ),
    "serve: no corpus": other(
        envs.retrieval_server.main,
        (
            "error: cannot serve none.jsonl on 127.0.0.1:8000: corpus none.jsonl cannot be read: No such file or "
            "directory"
        ),
        "--corpus",
        "none.jsonl",
    ),
    "serve: a port that is none": other(
        envs.retrieval_server.main,
        "error: cannot serve corpus.jsonl on 127.0.0.1:99999: bind(): port must be 0-65535.",
        "--corpus",
        "corpus.jsonl",
        "--port",
        "99999",
    ),
    "serve: another machine's address": other(
        envs.retrieval_server.main,
        "error: cannot serve corpus.jsonl on 192.0.2.1:8000: [Errno 99] Cannot assign requested address",
        "--corpus",
        "corpus.jsonl",
        "--host",
        "192.0.2.1",
    ),
}
