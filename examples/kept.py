"""A command that ends with whoever started it: `python examples/kept.py SECONDS COMMAND [ARGUMENT ...]`.

A server that hangs in its own shutdown outlives the SIGTERM that its parent's death sends it, and nobody is left to
kill it. This process stays: it gets that SIGTERM, or one from its parent, passes it on, and kills what is left.

Invariants:
- after SIGTERM the command has SECONDS to end; then it and its process group are killed;
- when the command has ended, whatever it left behind in its process group is killed;
- the exit code is the command's, or 128 and the number of the signal that ended it.

Who kills this process itself with SIGKILL has the command get SIGTERM, and no more than that.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from leyden.processes import end, own_group_until_parent_dies

_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def keep(command: Sequence[str], seconds: float) -> int:
    """Run `command` until it ends or this process gets SIGTERM; return its exit code.

    Raises:
        OSError: it can't be started.
    """
    # From before it starts: a SIGTERM that comes earlier than the first `sigwait` is still pending then.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    # A starter that ignores it hands that down, and the command's end would go unseen.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = subprocess.Popen(command, preexec_fn=_apart)
    while process.poll() is None:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            end(process, seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _apart() -> None:
    own_group_until_parent_dies()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[2:], float(sys.argv[1])))
