"""Command: `envs.check` for a run's environment, by the run's command line.

`python -m trainer.check_env experiment=textworld env.score=won` composes as `python -m trainer.main` does, and checks
the environment on held-out tasks. The exit code is 1 when a clause does not hold, 2 for a wrong setting.
"""

import sys
from collections.abc import Sequence

from envs.check import SHOWN, check
from envs.check_subject import Subject, bare_env
from envs.tasks import chosen_tasks, load_tasks
from rollout_workers.text_likeness import text_likeness
from trainer.compose import compose


def main(overrides: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    try:
        config = compose(sys.argv[1:] if overrides is None else overrides)
        held_out = load_tasks(config.env.eval_tasks, instruction=config.env.instruction)
        env = bare_env(config.env, config.decision, text_likeness)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    found = Subject(env=env, settings=config.env, decision=config.decision)
    tasks = found.shown(chosen_tasks(held_out, SHOWN))
    return int(check(env, tasks, max_turns=max(config.limits.max_turns, found.steps)) > 0)


if __name__ == "__main__":
    sys.exit(main())
