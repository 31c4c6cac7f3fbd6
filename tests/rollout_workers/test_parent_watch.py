"""A process that vLLM would have started ends with its parent, which is killed without a chance to say so."""

import signal
import subprocess
import sys

import psutil

CHILD = """
import multiprocessing, sys, time
from rollout_workers.parent_watch import watch

def engine(ready):
    watch()
    watch()
    ready.send(True)
    time.sleep(300)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=engine, args=(theirs,))
    child.start()
    ours.recv()
    print(child.pid, flush=True)
    time.sleep(300)
"""


def test_an_engine_process_ends_with_the_actor_that_was_killed(tmp_path):
    script = tmp_path / "actor.py"
    script.write_text(CHILD)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as actor:
        assert actor.stdout is not None
        engine = psutil.Process(int(actor.stdout.readline()))
        actor.send_signal(signal.SIGKILL)
    psutil.wait_procs([engine], timeout=60)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
