"""Rows of `test_bad_input.py`: models, places of a run, and settings."""

from bad_rows import BARE, FOLDER, SHAPES, Bad, config, decision, model, model_config, safetensors, settings, vocabulary

SETTINGS: dict[str, Bad] = {
    # Models
    "no model": Bad(
        says=(
            "model.path=models/none does not exist (relative paths count from {here}): it must be a folder with a "
            "Hugging Face causal language model or a hub id such as ORG/NAME."
        ),
        args=["model.path=models/none"],
        files={"models": FOLDER},
    ),
    "a file instead of a model": Bad(
        says=(
            "model.path=train.jsonl is a file: it must be a folder with a Hugging Face causal language model or a "
            "hub id such as ORG/NAME."
        ),
        args=["model.path=train.jsonl"],
    ),
    "a hub id without the hub": Bad(
        says="model.path=org/name is neither a folder nor in the hub's cache hub, and HF_HUB_OFFLINE is set.",
        args=["model.path=org/name"],
    ),
    "no config.json": model({"config.json": None}, "it has no config.json, so it is not a Hugging Face model folder."),
    "a config.json that is no JSON": model(
        {"config.json": "{"},
        "config.json is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)).",
    ),
    "a config.json that is a list": model({"config.json": "[]"}, "config.json does not hold a JSON object."),
    "no architectures": model(
        config(architectures=None),
        "its architectures are nothing, and a causal language model (...ForCausalLM) is needed.",
    ),
    "an encoder": model(
        config(architectures=["BertModel"]),
        "its architectures are BertModel, and a causal language model (...ForCausalLM) is needed.",
    ),
    "no model_type": model(config(model_type=None), "its config.json has no model_type, e.g. qwen2."),
    "an architecture that nobody knows": model(
        config(architectures=["NopeForCausalLM"]),
        "the installed transformers does not know its architecture NopeForCausalLM.",
    ),
    "a model that needs its own code": model(
        config(architectures=["NopeForCausalLM"], auto_map={"AutoModelForCausalLM": "evil.Nope"}),
        (
            "the installed transformers does not know its architecture NopeForCausalLM; it comes with code of its "
            "own, which runs only with model.trust_remote_code=true."
        ),
    ),
    "a model whose context is shorter": Bad(
        says="limits.max_context_tokens=512 must be at most 128, the longest context of model.",
        files=model_config(max_position_embeddings=128),
    ),
    "heads that cannot be split": Bad(
        says="rollout.tensor_parallel=3 must divide 2, the number of attention heads of model.",
        args=["rollout=gpu", "learner=gpu", "rollout.tensor_parallel=3"],
    ),
    "a context larger than the cache": Bad(
        says=(
            "rollout.kv_cache_gib=1 holds 32 tokens of model, fewer than limits.max_context_tokens=512: it must be "
            "at least 16."
        ),
        files=model_config(num_hidden_layers=512, num_attention_heads=64, head_dim=128, num_key_value_heads=64),
    ),
    "no weights": model({"model.safetensors": None}, "it has no weights (*.safetensors or pytorch_model*.bin)."),
    "weights that are text": model(
        {"model.safetensors": "version https://git-lfs.github.com/"},
        "model.safetensors is a pointer of Git LFS, and not the weights (get them: git lfs pull).",
    ),
    "weights that are noise": model(
        {"model.safetensors": b"\xff" * 64},
        "model.safetensors is not a safetensors file (its first 8 bytes are no header's length).",
    ),
    "weights with a broken header": model(
        {"model.safetensors": b"\x05\x00\x00\x00\x00\x00\x00\x00{nope"},
        "model.safetensors is not a safetensors file (its header is not what the format says).",
    ),
    "weights that are cut off": model(
        {"model.safetensors": safetensors(SHAPES)[:-40]},
        "model.safetensors is damaged: its header speaks of 192 bytes and it has 152.",
    ),
    "an index of weights that are not there": model(
        {"model.safetensors.index.json": '{"weight_map": {"a": "model-2-of-2.safetensors"}}'},
        "model.safetensors.index.json names model-2-of-2.safetensors, which is not there.",
    ),
    "an index that names another folder": model(
        {"model.safetensors.index.json": '{"weight_map": {"a": "../x.safetensors"}}'},
        "model.safetensors.index.json names '../x.safetensors', which is no file name.",
    ),
    "an index that is none": model(
        {"model.safetensors.index.json": "[]"},
        "model.safetensors.index.json is not an index of weights: it has no weight_map from names to files.",
    ),
    "no tokenizer": model(
        {"tokenizer.json": None}, "it has no tokenizer (tokenizer.json, tokenizer.model or vocab.json)."
    ),
    "a tokenizer that is no JSON": model(
        {"tokenizer.json": "x"}, "tokenizer.json is not JSON (Expecting value: line 1 column 1 (char 0))."
    ),
    "a tokenizer larger than the embedding": model(
        {"tokenizer.json": vocabulary(11)},
        (
            "its tokenizer has ids up to 10 and its embedding 8 rows (ids up to 7): tokenizer and model do not "
            "belong together."
        ),
    ),
    "no chat template": model(
        {"tokenizer_config.json": "{}"},
        "its tokenizer has no chat template (chat_template.jinja, or in tokenizer_config.json).",
    ),
    "a chat template that is no Jinja": model(
        {"chat_template.jinja": "{% for m in %}"},
        "its chat template is not Jinja (Expected an expression, got 'end of statement block', in line 1).",
    ),
    "adapters for a layer that is not there": Bad(
        says=(
            "learner.lora.targets names 'wqkv', which is no layer of model.path=model: it has q_proj (or [all-linear])."
        ),
        args=["learner.lora.rank=4", "learner.lora.targets=[q_proj,wqkv]"],
    ),
    # Where the run lies, and what it goes on from
    "a checkpoint that is not there": Bad(
        says="resume=runs/old/checkpoints/step-000001 is not a folder: it must be auto, never or a checkpoint folder.",
        args=["resume=runs/old/checkpoints/step-000001"],
    ),
    "a checkpoint that is another folder": Bad(
        says="resume=model cannot be used: model is not a checkpoint folder: its name must look like step-000012.",
        args=["resume=model"],
    ),
    "a checkpoint that was never finished": Bad(
        says="resume=step-000003 is not a usable checkpoint: it has no manifest.json.",
        args=["resume=step-000003"],
        files={"step-000003": FOLDER},
    ),
    "a file for runs": Bad(says="runs_dir=train.jsonl is a file: {folder}", args=["runs_dir=train.jsonl"]),
    "runs below a file": Bad(
        says="runs_dir=train.jsonl/runs cannot be made, since train.jsonl is a file: {folder}",
        args=["runs_dir=train.jsonl/runs"],
    ),
    "a file for the run": Bad(says="name=r is taken by a file, runs/r: {folder}", files={"runs/r": "x"}),
    "a run's name with slashes": settings("name='../../etc/cron.d/x' {name}", "name=../../etc/cron.d/x"),
    "a run's name that hides": settings("name='.hidden' {name}", "name=.hidden"),
    "a run's name that is too long": settings(
        "name='nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn... {name}", f"name={'n' * 129}"
    ),
    # Decisions
    "a decision in another world": settings(
        "decision goes with env.name=decision, not search: set env=decision, or decision=none.", "decision=travel"
    ),
    "no decision": Bad(
        says="env.name=decision needs a decision section: choose one with decision=..., e.g. decision=shop.",
        args=["env=decision"],
        good=BARE,
    ),
    "an unknown key of a decision node": decision(
        (
            "Unknown key decision.nodes.3.adaptor (did you mean decision.nodes[].adapter?): decision.nodes accepts "
            "act, adapter, coefficients, input_schema, instruction, max_tokens, name, output_schema, parent, reads and "
            "rewards."
        ),
        "decision.nodes.3.adaptor=null",
    ),
    "a wrong value in a decision node": decision(
        "decision.nodes[3].adapter.rank=0 is not accepted: it must be an integer from 1 to 256.",
        "decision.nodes.3.adapter.rank=0",
    ),
    "two roots": decision(
        "decision.nodes: node 'flight' is a second root beside 'intent'; give it a parent.",
        "decision.nodes.3.parent=null",
    ),
    "a cycle of nodes": decision(
        (
            "decision.nodes: the parents of node 'destination' form a cycle, 'destination' -> 'flight' -> 'time' -> "
            "'destination'."
        ),
        "decision.nodes.1.parent=flight",
    ),
    "a schema that is none": decision(
        (
            "decision.nodes: node 'flight': output_schema is not valid JSON Schema (Draft 2020-12): at required: "
            "'offer' is not of type 'array'."
        ),
        "decision.nodes.3.output_schema.required=offer",
    ),
    "a read of what runs later": decision(
        "decision.nodes: node 'time' reads 'flight', which runs later; declare 'flight' before it.",
        "decision.nodes.2.reads=[flight]",
    ),
    "a world that is not there": decision(
        "decision.world 'nowhere.made' cannot be imported: No module named 'nowhere'.",
        "decision.world=nowhere.made",
    ),
    "options that the world does not take": decision(
        (
            "decision.world 'envs.decisions.examples.TravelWorld' cannot be called with flights, trains: got an "
            "unexpected keyword argument 'trains'."
        ),
        "decision.options.trains=[]",
    ),
    "a reward that is not there": decision(
        ("rewards.rules of decision node 'flight': 'nowhere.rule' cannot be imported: No module named 'nowhere'."),
        "decision.nodes.3.rewards.rules=[nowhere.rule]",
    ),
    "a gate that is not there": decision(
        "the gate gate.safetensors cannot be read: No such file or directory.",
        "decision.gate.path=gate.safetensors",
    ),
    # Settings
    "an unknown key": settings(
        (
            "Unknown key evaluation.evry (did you mean evaluation.every?): evaluation accepts every, sample_trees "
            "and tasks."
        ),
        "evaluation.evry=1",
    ),
    "an unknown key with a plus": settings(
        "Unknown key model.revision: model accepts dtype, path and trust_remote_code.", "+model.revision=main"
    ),
    "an unknown group": settings("Unknown key trees (did you mean tree?).", "trees=chain"),
    "an unknown option": settings("learner=tpu is not accepted: it must be cpu or gpu.", "learner=tpu"),
    "nothing after the sign": settings("steps is empty: it must be an integer of at least 1.", "steps="),
    "no sign": settings("Cannot read 'steps': an override is written key=value, e.g. tree.roots=4.", "steps"),
    "a negative number": settings("steps=-1 {integer}", "steps=-1"),
    "a fraction": settings("steps=2.5 {integer}", "steps=2.5"),
    "a number in quotes": settings(
        "learner.lr='0.001' is not accepted: it must be a number above 0.", "learner.lr='0.001'"
    ),
    "a word for a number": settings(
        "learner.lr='fast' is not accepted: it must be a number above 0.", "learner.lr=fast"
    ),
    "NaN for a number": settings(
        "learner.lr=nan is not accepted: it must be a number above 0, and finite.", "learner.lr=nan"
    ),
    "infinity": settings(
        "scheduler.lease_timeout_s=inf is not accepted: it must be a number above 0, and finite.",
        "scheduler.lease_timeout_s=inf",
    ),
    "weights that are not compared": settings(
        "push.probe_prompts=0 is not accepted: it must be an integer of at least 1.", "push.probe_prompts=0"
    ),
    "a list for a number": settings(
        "limits.max_turns=[1, 2] is not accepted: it must be an integer of at least 0.", "limits.max_turns=[1,2]"
    ),
    "a number for a section": settings(
        "evaluation=3 is not accepted: it must be a section with the keys every, sample_trees and tasks.",
        "evaluation=3",
    ),
    "a word for a switch": settings(
        "model.trust_remote_code='yes' is not accepted: it must be true or false.", "model.trust_remote_code=yes"
    ),
    "a list that is too short": settings(
        "learner.betas[1] has no value: it must be a list of 2 items, each a number of at least 0 and below 1.",
        "learner.betas=[0.9]",
    ),
    "a list without items": settings(
        "learner.lora.targets=[] is not accepted: it must be a list of items, each text that is not empty.",
        "learner.lora.targets=[]",
    ),
    "a value that a file must give": settings(
        "model.path has no value: it must be a model folder or a hub id.", "model.path=???"
    ),
    "an interpolation of nothing": settings(
        (
            'model.path cannot be read: KeyError raised while resolving interpolation: "Environment variable '
            "'NO_SUCH_VARIABLE' not found\"."
        ),
        "model.path=${oc.env:NO_SUCH_VARIABLE}",
    ),
    "a secret that cannot be read": settings(
        "Cannot read 'env.options.api_key=***': an override is written key=value, e.g. tree.roots=4.",
        "env.options.api_key=[hunter2hunter2",
    ),
    "an address without protocol": settings(
        "cluster.address='head:6379' is not accepted: it must be auto, local or ray://HOST:PORT.",
        "cluster.address=head:6379",
    ),
    "more mini-batches than tasks": settings(
        "learner.mini_batches=3 must be at most tasks_per_step=2.", "learner.mini_batches=3"
    ),
    "more leaves than a step can hold": settings(
        (
            "tasks_per_step=2 and the tree section give 12,800,008 leaves per step, and one step holds at most "
            "1,000,000: lower tree.rounds, tree.nodes_per_round, tree.branches_per_node, tree.roots or "
            "tasks_per_step."
        ),
        "tree.rounds=100000",
        "tree.branches_per_node=8",
    ),
    "a context shorter than prompt and step": settings(
        "limits.max_context_tokens=64 must be at least 208 (limits.max_prompt_tokens + limits.max_turn_tokens).",
        "limits.max_context_tokens=64",
    ),
    "packs shorter than the context": settings(
        (
            "learner.max_tokens_per_pack=64 must be at least limits.max_context_tokens=512, so that every path fits "
            "into a pack."
        ),
        "learner.max_tokens_per_pack=64",
    ),
    "a comparison with nobody": settings(
        (
            "tree.roots=1 without branches gives every task one leaf and so no advantage: set tree.roots to at least "
            "2, or tree.rounds and tree.nodes_per_round to at least 1."
        ),
        "tree.roots=1",
        "tree.rounds=0",
    ),
    "a cut distribution": settings(
        (
            "rollout.top_p=0.9 is not accepted: sampling must be from the full distribution (rollout.top_p=1), since "
            "the learner's log-probabilities know nothing of the cut; use rollout.temperature."
        ),
        "rollout.top_p=0.9",
    ),
    "a lease that a healthy branch may outlive": settings(
        (
            "scheduler.lease_timeout_s=300 must be above rollout.turn_timeout_s=290 plus env.max_tool_seconds=30: "
            "a branch may be silent for so long and be well."
        ),
        "scheduler.lease_timeout_s=300",
        "rollout.turn_timeout_s=290",
    ),
    "weights pushed between GPUs that are not there": settings(
        "push.backend=nccl needs learner.device=cuda and rollout.device=cuda: use push.backend=gloo or auto.",
        "push.backend=nccl",
    ),
    "three faults at once": settings(
        (
            "learner=tpu is not accepted: it must be cpu or gpu.\n"
            "Unknown key seeds (did you mean seed?).\n"
            "steps=0 {integer}"
        ),
        "steps=0",
        "learner=tpu",
        "seeds=1",
    ),
    "no configuration": settings(
        "No configuration in nowhere: it must be a folder that holds config.yaml.", "--config-dir", "nowhere"
    ),
    "an option of the command that there is not": settings(
        "Unrecognized arguments: --dry-run; see --help.", "--dry-run"
    ),
}
