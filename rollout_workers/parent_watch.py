"""Engine processes end when the actor that started them is gone, however it died.

vLLM's workers notice that their engine core died, but an engine core does not notice that its front end, the rollout
actor, was killed: it would keep its memory (on a GPU, all of it) for ever. vLLM loads `watch` in each of its processes
through the entry-point group `vllm.general_plugins`.
"""

import multiprocessing
import os
import signal
import threading

_NAME = "espalier-parent-watch"


def watch() -> None:
    """Starts a thread that kills this process when its parent dies; a second call changes nothing.

    Only in processes that Python's multiprocessing started: the actor itself is Ray's to end.
    """
    parent = multiprocessing.parent_process()
    if parent is None or any(thread.name == _NAME for thread in threading.enumerate()):
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name=_NAME, daemon=True).start()
