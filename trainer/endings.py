"""The ends of a run: after its last step, before it with a checkpoint to go on from, and by an error."""

from typing import TYPE_CHECKING

from envs.masking import masked_text
from trainer.checkpoint_writer import CheckpointError
from trainer.guards import GuardError
from trainer.push import MismatchError
from trainer.report import write_report
from trainer.run_folder import library_versions
from trainer.stopping import Stopped

if TYPE_CHECKING:
    from trainer.loop import Loop

DOUBTFUL = (MismatchError, CheckpointError)
"""Errors after which nothing is saved: of weights that may be wrong, which must not take a good checkpoint's place, and
of the saving itself."""


def finish(loop: "Loop") -> None:
    """Last checkpoint, Hugging Face export, summary and report."""
    session, folder = loop.session, loop.session.folder
    loop.save()
    session.learner.export(folder.export.resolve())
    loop.record(session.saver.wait())
    model = session.as_set.model.path
    summary = loop.totals.summary(seed=loop.config.seed, versions=library_versions(), model=model)
    folder.write_summary(summary)
    session.tracker.summary(summary)
    report = write_report(folder.path)
    session.saver.check()
    session.progress.note(f"{loop.totals.last_words()}; report {report}; policy {folder.export}")


def leave(loop: "Loop", reason: Exception) -> None:
    """What is left to do for a run that ends before its last step: a checkpoint of the last finished one.

    Raises CheckpointError if it could not be written and the run ends by a promise (SIGTERM, a bound of `guards`).
    Under any other error nothing is raised, since that error is what counts, and nothing is saved where the learner may
    be between two steps or its weights may be wrong. Waits as long as for any checkpoint.
    """
    session, step = loop.session, loop.totals.step
    is_promised = isinstance(reason, Stopped | GuardError)
    if is_promised and not step:
        session.progress.note(f"{reason}: nothing was trained yet, so there is no checkpoint")
    elif is_promised:
        session.progress.note(f"{reason}: saving step {step}")
        _save(loop)
    elif step and loop.is_between_steps and not isinstance(reason, DOUBTFUL):
        try:
            _save(loop)
        except Exception as error:  # e.g. of a learner that is dead
            session.progress.note(f"step {step} could not be saved: {masked_text(str(error))}")


def _save(loop: "Loop") -> None:
    loop.save()
    loop.session.saver.check()
    loop.session.progress.note(f"step {loop.totals.step} is saved; a run of this name goes on from there (resume=auto)")
