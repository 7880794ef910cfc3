"""Training: settings, loop, checkpoints, evaluation. :func:`fit` is the loop, :func:`train` fills it from settings.

Names are imported on first use, so that settings and recipes can be read without torch.
"""

from torchscn.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
