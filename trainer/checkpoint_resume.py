"""Which checkpoint a run goes on from, decided before anything is started."""

from dataclasses import dataclass
from pathlib import Path

from trainer import checkpoint
from trainer.checkpoint_state import RunState, changes, contradictions, model_id, tokenizer_id
from trainer.config import RunConfig
from trainer.config.sentences import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where a run goes on."""

    path: Path
    state: RunState
    notes: tuple[str, ...]
    """Sentences for the user: damaged checkpoints that were passed over, and changed settings."""

    def run_id(self, name: str) -> str | None:
        """The W&B run to go on with; None for a run of another name, which gets one of its own."""
        return self.state.wandb_run_id if self.state.name == name else None


def resumption(config: RunConfig, *, checksums: bool = True) -> Resumption | None:
    """What `resume` means for this run; None to start anew. Nothing is written.

    Raises ConfigError if a checkpoint was asked for or is there and none is usable, and if it contradicts the settings.
    `checksums` as in `checkpoint.find`; with it every byte of the checkpoint is read.
    """
    try:
        found = checkpoint.find(config.resume, checkpoints_of(config), checksums=checksums, check=RunState.from_json)
        if found is None:
            return None
        state = RunState.from_json(found.state)
        model = model_id(config.model.path)
    except (ValueError, OSError) as error:
        sentence = str(error).rstrip(".")
        said = sentence if sentence.startswith("resume=") else f"resume={config.resume} cannot be used: {sentence}"
        raise ConfigError([f"{said}."]) from None
    if faults := list(contradictions(found.path, state, config, model)):
        raise ConfigError(faults)
    changed = changes(state, config)
    notes = [*found.notes, f"resumed from {found.path} after step {state.totals.step}"]
    if changed:
        notes.append(f"resumed with changed settings: {', '.join(changed)}")
    if tokenizer_id(config.model.path) != state.tokenizer != "":
        notes.append(
            f"model.path={config.model.path} has another tokenizer or chat template than the checkpoint's run had: "
            "the model gets other token ids for the same text from now on"
        )
    return Resumption(path=found.path, state=state, notes=tuple(notes))


def checkpoints_of(config: RunConfig) -> Path:
    """The folder of a run's checkpoints."""
    return Path(config.runs_dir) / config.name / "checkpoints"
