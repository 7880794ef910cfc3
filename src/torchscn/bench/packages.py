"""Packages that competitors need; one that is not installed leaves its competitor out, with a line that says so."""

import importlib
import sys
from typing import NamedTuple

__all__ = ["Package"]


class Package(NamedTuple):
    """A third-party package.

    Args:
        title: what people call it.
        module: what Python calls it.
        install: what pip calls it.
    """

    title: str
    module: str
    install: str

    def is_installed(self) -> bool:
        """Whether it can be imported; if not, say on stderr what to install."""
        try:
            importlib.import_module(self.module)
        except ImportError:
            print(f"{self.title} is left out because it is not installed: pip install {self.install}", file=sys.stderr)
            return False
        return True
