"""The command ``scn``: parse, call, print.

One file per group of commands. None of them imports torch before a command needs it, so that help, version and recipes
appear immediately.
"""

import sys
from typing import Any

from torchscn.cli.interrupts import STOPPED, quick_ctrl_c, say_stopped
from torchscn.cli.messages import complain
from torchscn.training.errors import Interrupted

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a mistake in the input is reported in one sentence, not a traceback."""
    try:
        with quick_ctrl_c():
            from torchscn.cli.commands import app  # here, so that Ctrl-C during this import ends quietly, too
            from torchscn.cli.train import spell_out_switches

            return app(spell_out_switches(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        say_stopped()
        sys.exit(STOPPED)
    except Interrupted as stop:
        print(file=sys.stderr)
        complain(stop)
        sys.exit(128 + stop.signal_number)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        complain(error)
        sys.exit(1)
