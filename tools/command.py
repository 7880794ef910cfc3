"""What the commands of the tools have in common."""

import sys

from cyclopts import App

from torchscn.training.errors import Interrupted

__all__ = ["run_command"]


def run_command(app: App, arguments: list[str] | None) -> None:
    """Run a command; a mistake in the input is reported in one sentence, not a traceback."""
    try:
        app(arguments)
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        sys.exit(128 + stop.signal_number)
    except (ValueError, RuntimeError, OSError) as error:
        name = app.name[0].removeprefix("python -m ")
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
