"""Deep sparse coding for PyTorch: exact, differentiable, fast.

Names are imported when they are first used: ``import torchscn`` is quick, and what needs no torch does not load it.
(For this to work no module may have the name of a public function: importing the module would hide the function.)
"""

from typing import Any

from torchscn.lazy import lazy_names

_find, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("torchscn")
    else:
        value = _find(name)
    globals()[name] = value  # so that the next look-up is a plain one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
