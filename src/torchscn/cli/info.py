"""``scn info``."""

from rich.console import Console
from rich.table import Table

from torchscn.cli.display import plain

__all__ = ["info"]

_ABOUT_THE_CALL = ("command", "world_size")  # useful in a record, but not to the person who has just typed it


def info() -> None:
    """Show versions, the solver kernel in use and what else is available on this machine."""
    table = Table(show_header=False, box=None)
    for name, value in _describe().items():
        table.add_row(name, plain(value))
    Console().print(table)


def _describe() -> dict[str, str]:
    import torch

    import torchscn
    from torchscn.environment import describe_environment
    from torchscn.kernels import available_kernels
    from torchscn.kernels.gpu import why_no_triton

    described = {name: value for name, value in describe_environment().items() if name not in _ABOUT_THE_CALL}
    return {name: "none" if value is None else str(value) for name, value in described.items()} | {
        "kernels available": ", ".join(available_kernels()),
        "solvers": ", ".join(torchscn.list_solvers()),
        "models": ", ".join(torchscn.list_models()),
        "trained networks": ", ".join(torchscn.list_pretrained()),
        "cuda device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "triton kernels": f"unavailable: {why_no_triton()}" if why_no_triton() else "available for CUDA devices",
    }
