"""The tables of *Supervised Deep Sparse Coding Networks* (Sun, Nasrabadi, Tran), as printed."""

from typing import NamedTuple

__all__ = ["CIFAR", "MNIST", "SCN_ERRORS", "TIMES", "PaperRow"]


class PaperRow(NamedTuple):
    """A method with the error in percent for each data set of its table; None where none is given."""

    method: str
    parameters: str
    layers: str
    errors: tuple[float | None, ...]


CIFAR = (
    PaperRow("SCKN", "10.50M", "10", (10.20, None)),
    PaperRow("OMP", "0.70M", "2", (18.50, None)),
    PaperRow("PCANet", "0.28B", "3", (21.33, None)),
    PaperRow("NOMP", "1.09B", "4", (18.60, 39.92)),
    PaperRow("NiN", "-", "-", (8.81, 35.68)),
    PaperRow("DSN", "1.34M", "7", (7.97, 36.54)),
    PaperRow("WRN", "36.5M", "28", (4.00, 19.25)),
    PaperRow("ResNet-110", "0.85M", "110", (6.41, 27.22)),
    PaperRow("ResNet-1001 v2", "10.2M", "1001", (4.92, 27.21)),
    PaperRow("ResNext-29", "68.10M", "29", (3.58, 17.31)),
    PaperRow("SwapOut-20", "1.10M", "20", (5.68, 25.86)),
    PaperRow("SwapOut-32", "7.43M", "32", (4.76, 22.72)),
    PaperRow("SCN-1", "0.17M", "15", (8.86, 25.08)),
    PaperRow("SCN-2", "0.35M", "15", (7.18, 22.17)),
    PaperRow("SCN-4", "0.69M", "15", (5.81, 19.93)),
)

MNIST = (
    PaperRow("CKN", "-", "2", (0.39,)),
    PaperRow("ScatNet", "-", "3", (0.43,)),
    PaperRow("PCANet", "-", "3", (0.62,)),
    PaperRow("S-SC", "-", "1", (0.84,)),
    PaperRow("TDDL", "-", "1", (0.54,)),
    PaperRow("SCN-4", "0.69M", "15", (0.36,)),
)

# Of SCN-4 on four Tesla P40 GPUs: hours of training, seconds for 10,000 test images, epochs.
TIMES = {"cifar10": (26, 9, 200), "cifar100": (26, 9, 200), "mnist": (3, 7, 25)}

# What the paper reports for its own networks, by model and data set.
SCN_ERRORS = {
    **{(f"scn{width}", "cifar10"): row.errors[0] for width, row in zip((1, 2, 4), CIFAR[-3:], strict=True)},
    **{(f"scn{width}", "cifar100"): row.errors[1] for width, row in zip((1, 2, 4), CIFAR[-3:], strict=True)},
    ("scn4", "mnist"): MNIST[-1].errors[0],
}
