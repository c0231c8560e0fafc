"""A folder that exists only when it is complete.

Invariants:
- the folder appears under its name in one rename, with everything in it;
- making it again changes nothing, and of two processes that make it at once one wins and both go on.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def make_once(folder: Path, fill: Callable[[Path], None]) -> bool:
    """Have `fill` write the contents of `folder` unless it exists. Return whether it was made now.

    What `fill` leaves behind when it raises is removed.
    """
    if folder.exists():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fill(partial)
        partial.chmod(0o755)
        os.rename(partial, folder)
    except OSError:
        if folder.exists():  # another process was first
            return False
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True
