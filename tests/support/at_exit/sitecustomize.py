"""Before the interpreter ends, wait until the threads of torch's gloo hold no tensors.

`destroy_process_group` of torch 2.13 does not stop these threads. One that still holds the last
reference to a tensor while the interpreter is finalized asks for the GIL and aborts the process,
whose work is done (pytorch/pytorch, pull request 179291). A thread that is only late, on a busy
machine, gets the time here.
"""

import atexit
import sys
import time
from pathlib import Path

THREAD = "pt_gloo_runloop"
PATIENCE = 10.0  # seconds


def working() -> bool:
    """True while a thread of gloo can run: one that waits for work sleeps."""
    for task in Path("/proc/self/task").glob("*/stat"):
        try:
            name, _, rest = task.read_text("utf-8").partition("(")[2].rpartition(")")
        except OSError:  # the thread has ended
            continue
        if name == THREAD and rest.split()[0] != "S":
            return True
    return False


@atexit.register
def wait_for_gloo() -> None:
    """Wait until no thread of gloo has been seen at work twice in a row, at most `PATIENCE`."""
    if "torch.distributed" not in sys.modules:
        return
    deadline, idle = time.monotonic() + PATIENCE, 0
    while idle < 2 and time.monotonic() < deadline:
        time.sleep(0.005)  # without the GIL, which such a thread may wait for
        idle = 0 if working() else idle + 1
