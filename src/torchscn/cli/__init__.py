"""The command ``scn``: parse, call, print.

One file per group of commands. None of them imports torch before a command needs it, so that help, version and recipes
appear immediately.
"""

import sys
from typing import Any

from cyclopts import App

import torchscn
from torchscn.cli import bench, data, evaluate, info, train
from torchscn.training.errors import Interrupted

__all__ = ["app", "main"]

app = App(name="scn", help="Deep sparse coding networks for PyTorch.", version=lambda: torchscn.__version__)
app.command(train.train)
app.command(train.recipes)
app.command(evaluate.evaluate, name="eval")
app.command(evaluate.predict)
app.command(data.app)
app.command(bench.bench)
app.command(info.info)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a mistake in the input is reported in one sentence, not a traceback."""
    try:
        return app(arguments)
    except Interrupted as stop:
        print(f"\nscn: {stop}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        print(f"scn: {error}", file=sys.stderr)
        sys.exit(1)
