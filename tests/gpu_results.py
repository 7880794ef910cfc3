"""A made-up result of ``scn bench gpu`` for tests; no GPU has seen it."""

import copy
from typing import Any


def made_up_result(**changes: Any) -> dict[str, Any]:
    """A complete result, with some of its entries changed."""
    step = {"network": "scn1", "mode": "training", "precision": "float32"}
    result = {
        "format": 1,
        "date": "2001-02-03 04:05",
        "device": {"name": "Imaginary 9000", "capability": "9.9", "mebibytes": 1, "multiprocessors": 1},
        "versions": {
            **{"torchscn": "0", "commit": "abc", "torch": "2+cu1", "triton": "3", "cuda": "1", "driver": "5"},
            **{"python": "3", "system": "Linux"},
        },
        "batch": 128,
        "rounds": 3,
        "checks": [{"name": "codes", "kernel": "triton", "passed": True, "error": 0.5}],
        "steps": [
            step | {"network": "cnn1", "kernel": "none", "seconds": 0.01, "peak_mebibytes": 100.0},
            step | {"kernel": "triton", "seconds": 0.015, "peak_mebibytes": 120.0},
            step | {"kernel": "torch", "problem": "out of memory"},
        ],
    }
    return copy.deepcopy(result | changes)
