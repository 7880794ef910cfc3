"""Deep sparse coding for PyTorch: exact, differentiable, fast.

Names are imported on first use: ``import torchscn`` is quick, and whatever does not need torch does not load it.
(For this to work, no module may have the name of a public function: importing the module would hide the function.)
"""

from typing import Any

from torchscn.lazy import lazy_names

_find, __dir__, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("torchscn")
    else:
        value = _find(name)
    globals()[name] = value  # so that the next look-up finds it directly
    return value
