"""What a network has learned: functions that compute it, and a report that shows it.

Names are imported on first use.
"""

from torchscn.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
