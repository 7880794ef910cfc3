"""Public names of a package, imported on first use (PEP 562).

The package's stub, which type checkers read, is the only list of these names.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the imports in the stub next to ``__init__.py``.

    Args:
        package: name of the package.
        file: its ``__file__``.
    """
    home_of = {
        alias.name: str(node.module)
        for node in ast.parse(Path(file).with_suffix(".pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def find(name: str) -> Any:
        if home_of.get(name, package) != package:
            return getattr(importlib.import_module(home_of[name]), name)
        if name.startswith("_") or importlib.util.find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return find, names, [name for name, home in home_of.items() if home != package]
