"""One vLLM engine: exact token ids in, exact token ids out. Besides `weight_transfer.py` and what runs inside of vLLM
(`vllm_adapters.py`, `vllm_waiting.py`) the only file that imports vllm.

Owns how the engine is configured (prefix caching, block size, processed log-probabilities, weight-transfer backend) and
how its answers become `Completion` values. The same code runs on CPU and GPU; only the settings differ.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from envs.decisions.types import Alternatives, Ask
from rollout_workers.adapters import FOLDER, AdapterFiles
from rollout_workers.branch import Policy
from rollout_workers.conversation import Conversation
from rollout_workers.engine_counts import EngineCounts, StatReader
from rollout_workers.engine_settings import EngineSettings, check_room, engine_arguments, set_environment
from rollout_workers.grammar import grammar_of, token_texts
from rollout_workers.logprobs import alternatives_at, chosen, entropies, labels
from rollout_workers.session import Answer, Session
from rollout_workers.types import Completion, Sampling

LOADED = 0
"""Version of the weights that an engine loads at its start."""
PAUSE_TRIES = 20
SETTLE_S = 0.005
SETTLE_LOOKS = 400
"""Before a pause: how often, and how many seconds apart, it is looked whether all sessions that were asked run."""


class GenerationEngine:
    """An `AsyncLLM` with its tokenizer. Create it inside a running event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        """Starts the engine and its worker processes; blocks until the model is loaded (10-50 s)."""
        set_environment(settings)
        from vllm import AsyncEngineArgs, SamplingParams
        from vllm.config import StructuredOutputsConfig, WeightTransferConfig
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.v1.engine.async_llm import AsyncLLM

        self._params = SamplingParams
        self._guides = StructuredOutputsParams
        self._kinds = RequestOutputKind
        transfer = WeightTransferConfig(backend=settings.transfer_backend)
        # The learner makes the masks again with xgrammar; vLLM may choose another library if it is left the choice.
        guide = StructuredOutputsConfig(backend="xgrammar")
        arguments = AsyncEngineArgs(
            weight_transfer_config=transfer, structured_outputs_config=guide, **engine_arguments(settings)
        )
        self._reader = StatReader()
        self._llm = cast("Any", AsyncLLM.from_engine_args(arguments, stat_loggers=cast("Any", [self._reader.create])))
        # vLLM adds a Prometheus logger with a histogram entry per token; nobody reads it here.
        del self._llm.logger_manager.stat_loggers[1:]
        self.tokenizer = self._llm.get_tokenizer()
        self._adapters = AdapterFiles(settings.adapters, Path(settings.model) / FOLDER)
        # vLLM warns at the first adapter that it does not look for a tokenizer in its folder; ours have none.
        logging.getLogger("vllm.v1.engine.input_processor").setLevel(logging.ERROR)
        self._stop_ids: dict[str, int | None] = {}
        self._texts: list[str] = []
        """Text of each id by itself, once somebody asked for alternatives."""
        self._ids = itertools.count()
        self.version = LOADED
        self._sessions: set[Session] = set()
        self._is_pausing = False
        self._keep_turns = settings.keep_turns
        if settings.keep_turns:
            check_room(settings, self._llm.vllm_config.cache_config.num_gpu_blocks)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop: Sequence[str],
        max_tokens: int,
        ask: Ask | None = None,
    ) -> Completion:
        """Samples one agent step after `prompt_ids`.

        Temperature 0 is greedy. The stop string (or end-of-sequence token) stays in the returned ids. A stop string
        that is one token of the vocabulary ends the request inside the engine; a longer one is found in the text
        outside of it, and by then the engine has sampled one more token, which `counts` has as surplus. Cancelling the
        awaiting task aborts the request in the engine.

        A schema in `ask` holds the answer to its grammar (`rollout_workers.grammar`), and log-probabilities are those
        among the tokens that it allows. The end-of-sequence token then ends the answer, and no stop string does. An
        adapter in `ask` computes the whole prompt and the answer. Raises ValueError for one that is not served.
        """
        stop = () if ask is not None and ask.schema else stop
        params = self._sampling(
            sampling, seed, stop, max_tokens, ask, stop=list(stop), output_kind=self._kinds.FINAL_ONLY
        )
        final = None
        prompt = {"prompt_token_ids": list(prompt_ids)}
        adapter = self._adapter(ask.adapter) if ask is not None and ask.adapter is not None else None
        name = f"r{next(self._ids)}"
        async for output in self._llm.generate(cast("Any", prompt), params, name, lora_request=adapter):
            final = output
        assert final is not None, "the engine gave no output"
        assert final.finished, "the engine closed a request without a final output"
        return self._completion(final, sampling.entropy_topk, ask.alternatives if ask is not None else 0)

    def _sampling(
        self,
        sampling: Sampling,
        seed: int,
        stop_at: Sequence[str],
        max_tokens: int,
        ask: Ask | None = None,
        **more: Any,
    ) -> Any:
        guide = self._guides(grammar=grammar_of(ask.schema)) if ask is not None and ask.schema else None
        return self._params(
            temperature=sampling.temperature,
            seed=seed if sampling.temperature > 0 else None,
            max_tokens=max_tokens,
            logprobs=max(sampling.entropy_topk, ask.alternatives if ask is not None else 0),
            structured_outputs=guide,
            stop_token_ids=[token for text in stop_at if (token := self._stop_id(text)) is not None],
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            **more,
        )

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Policy]:
        """What one branch samples from: this engine, or with `keep_turns` one session for all steps."""
        if not self._keep_turns:
            yield self
            return
        talk = Conversation(self)
        try:
            yield talk
        finally:
            await talk.close()

    def may_keep(self, stop: Sequence[str]) -> bool:
        """False during a push, and where a stop string is more than one token, which only the text shows."""
        return not self._is_pausing and all(self._stop_id(text) is not None for text in stop)

    def open_session(self) -> Session:
        """A new resumable request, which `pause` may end whenever it is idle."""
        self._sessions = {session for session in self._sessions if not session.is_over}
        params = self._sampling(Sampling(), 0, (), 1, output_kind=self._kinds.DELTA)
        name = f"s{next(self._ids)}"
        session = Session(
            lambda inputs: self._llm.generate(inputs, params, name),
            lambda: self.version,
            lambda ids: str(self.tokenizer.decode(list(ids), skip_special_tokens=False)),
        )
        self._sessions.add(session)
        return session

    def chunk(self, ids: Sequence[int], sampling: Sampling, seed: int, stop: Sequence[str], max_tokens: int) -> Any:
        """New tokens of a session, with how to sample after them."""
        from vllm.engine.protocol import StreamingInput

        params = self._sampling(sampling, seed, stop, max_tokens, output_kind=self._kinds.DELTA)
        return StreamingInput(prompt=cast("Any", {"prompt_token_ids": list(ids)}), sampling_params=params)

    def completion(self, answer: Answer, before: int, topk: int, prompt: int, kept: int) -> Completion:
        """The answer of a session that had sampled `before` tokens and kept `kept` of the `prompt` tokens."""
        versions = list(answer.arrived)
        for place, version in labels(answer.spans):
            if before <= place < before + len(versions):
                versions[place - before] = version
        return Completion(
            token_ids=tuple(answer.token_ids),
            logprobs=chosen(answer.token_ids, answer.steps),
            versions=tuple(versions),
            text=answer.text,
            finished=cast("Any", answer.finished),
            entropies=entropies(answer.steps, topk),
            prompt_tokens=prompt,
            cached_tokens=kept or answer.cached_tokens,
            kept_tokens=kept,
            cut_tokens=answer.cut_tokens,
        )

    def _stop_id(self, text: str) -> int | None:
        """The id of a stop string that is one token by itself."""
        if text not in self._stop_ids:
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            is_one = len(ids) == 1 and self.tokenizer.decode(ids, skip_special_tokens=False) == text
            self._stop_ids[text] = int(ids[0]) if is_one else None
        return self._stop_ids[text]

    @property
    def counts(self) -> EngineCounts:
        """What vLLM itself has counted since the start."""
        return self._reader.counts

    def _completion(self, output: Any, topk: int, alternatives: int) -> Completion:
        sample = output.outputs[0]
        token_ids = tuple(sample.token_ids)
        versions = [LOADED] * len(token_ids)
        spans = sample.weight_versions or ()
        labelled = sum(span.end - span.start for span in spans)
        assert labelled == len(token_ids), f"vLLM says of {labelled} of {len(token_ids)} tokens which weights it used"
        for place, version in labels(spans):
            versions[place] = version
        assert sample.finish_reason in ("stop", "length"), f"request ended with {sample.finish_reason}"
        return Completion(
            token_ids=token_ids,
            logprobs=chosen(token_ids, sample.logprobs),
            versions=tuple(versions),
            text=sample.text,
            finished=sample.finish_reason,
            entropies=entropies(sample.logprobs, topk),
            alternatives=self._alternatives(token_ids, sample.logprobs) if alternatives else (),
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens or 0,
        )

    def _alternatives(self, token_ids: Sequence[int], steps: Sequence[Any]) -> tuple[Alternatives, ...]:
        if not self._texts:
            self._texts = token_texts(self.tokenizer, self._llm.vllm_config.model_config.get_vocab_size())
        return tuple(alternatives_at(token, step, self._texts) for token, step in zip(token_ids, steps, strict=True))

    async def pause(self) -> None:
        """Freezes running requests and clears every cache, so that new weights can be loaded.

        Frozen requests keep their tokens; their keys and values are computed again under the new weights. Sessions that
        wait for their environment can't be frozen; they end, and their branches go on with plain requests.
        """
        self._is_pausing = True
        for _ in range(PAUSE_TRIES):
            await self._end_idle_sessions()
            try:
                await self._llm.pause_generation(mode="keep", clear_cache=True)
            except Exception:
                # A session may have become idle on the engine's side just before. The engine is paused by now, so at
                # the next try none can.
                if not self._sessions:
                    raise
                await asyncio.sleep(SETTLE_S)
            else:
                return
        raise RuntimeError(f"vLLM did not clear its caches in {PAUSE_TRIES} tries: a session holds keys and values")

    async def _end_idle_sessions(self) -> None:
        for _ in range(SETTLE_LOOKS):
            if all(session.is_idle or session.has_begun for session in self._sessions):
                break
            await asyncio.sleep(SETTLE_S)
        for session in list(self._sessions):
            if session.is_idle and not session.is_over:
                await session.close()
        self._sessions = {session for session in self._sessions if not session.is_over}

    async def resume(self, version: int) -> None:
        """Labels the weights now loaded and lets requests run again."""
        await self._llm.update_weight_version(str(version))
        self.version = version
        await self._llm.resume_generation()
        self._is_pausing = False

    async def load_adapters(self, weights: Mapping[str, bytes]) -> None:
        """Takes new weights of some adapters, each a safetensors file in PEFT's format; between `pause` and `resume`.

        vLLM forgets all adapters when the weights below them change; those that are not in `weights` are given to it
        again. Raises RuntimeError if it does not take one.
        """
        for name, content in weights.items():
            self._adapters.write(name, content)
        held = await self._llm.list_loras() if self._adapters.names else ()
        for name in self._adapters.names:
            is_missing = self._adapters.number(name) not in held and self._adapters.place(name) is not None
            if (name in weights or is_missing) and not await self._llm.add_lora(self._adapter(name, name in weights)):
                raise RuntimeError(f"vLLM did not take the adapter {name}")

    def _adapter(self, name: str, is_new: bool = False) -> Any:
        """The adapter as vLLM is told it; `is_new` makes vLLM read its files again."""
        from vllm.lora.request import LoRARequest

        place = self._adapters.place(name)
        if place is None:
            raise ValueError(f"the adapter {name!r} has no weights: neither the model has any nor did the learner send")
        return LoRARequest(
            lora_name=name, lora_int_id=self._adapters.number(name), lora_path=str(place), load_inplace=is_new
        )

    async def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Joins the learner's transfer group."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))

    async def start_weight_update(self) -> None:
        """Opens one push."""
        await self._llm.start_weight_update()

    async def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives the weights of one push."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info))

    async def finish_weight_update(self) -> None:
        """Closes one push."""
        await self._llm.finish_weight_update()

    def shutdown(self) -> None:
        """Stops the engine's processes; the engine is of no use afterwards.

        vLLM's part is let go, or it would shut down once more at the very end of the process, when half of the
        interpreter is gone: vLLM keeps the error of an import that failed, and that the frames of who imported it.
        """
        self._llm.shutdown()
        self._llm = None
        self._adapters.close()
