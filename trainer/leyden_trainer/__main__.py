"""`python -m leyden_trainer [--config FILE] [section.setting=value …]`: train on the rows that are configured.

Exits as `command_line.run` says, and with 130 after SIGINT and 143 after SIGTERM, whatever it was doing.
"""

import signal
import sys
from types import FrameType


class _Terminated(SystemExit):
    """SIGTERM came."""


def main() -> int:
    """Train until it is done or a signal comes; the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        # Imported here, not above: it takes seconds, in which a signal may come as well.
        from leyden_trainer import command_line

        asked = command_line.parse(sys.argv[1:])
        try:
            return command_line.run(asked)
        except SystemExit:
            # Ray puts a handler of its own in place of ours, which exits with 1; nothing else in training exits.
            raise _Terminated from None
    except KeyboardInterrupt:
        return _interrupted(signal.SIGINT)
    except _Terminated:
        return _interrupted(signal.SIGTERM)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _interrupted(number: signal.Signals) -> int:
    # Ray ends its processes as this one exits; a second Ctrl-C doesn't wait for that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stderr.write("leyden train: interrupted; the same command goes on from the last checkpoint\n")
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
