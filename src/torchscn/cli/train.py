"""``scn train`` and ``scn recipes``."""

import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchscn.cli.arguments import DataDir, WholeNumber
from torchscn.cli.display import plain
from torchscn.cli.messages import naming_flags
from torchscn.training.config import SettingDescription, describe_settings, list_recipes, load_recipe

__all__ = ["recipes", "spell_out_switches", "train"]


_SWITCH = "true, false"


def train(
    recipe: str,
    *,
    run_dir: Path | None = None,
    data_dir: DataDir = None,
    resume: bool = False,
    device: str = "auto",
    threads: WholeNumber | None = None,
    quiet: bool = False,
    **settings: str,
) -> None:
    """Train a network from a recipe; any setting of the recipe can be changed.

    For example: scn train cifar10-scn1 --epochs 2 --lr 0.05. `scn recipes` lists the recipes and all settings.
    With several processes: torchrun --nproc-per-node 2 -m torchscn train RECIPE --run-dir DIR ...

    Parameters
    ----------
    recipe
        Name of a recipe, or path of a TOML file.
    run_dir
        Folder for settings, metrics, checkpoints and pictures; runs/RECIPE-TIME if not given.
    resume
        Resume the run from the checkpoint in --run-dir, exactly as if it had never stopped.
    device
        cpu, cuda, or auto for CUDA if available.
    threads
        CPU threads of each process.
    quiet
        Print nothing.
    settings
        Any setting of the recipe, for example --lr 0.05 --nesterov.
    """
    config = load_recipe(recipe)
    flags = [setting.name for setting in describe_settings()] + ["data_dir", "run_dir"]
    with naming_flags(*flags):
        config = config.override(settings)
    if run_dir is None:
        if resume or "RANK" in os.environ:
            raise ValueError("name the run folder: --run-dir DIR (needed with --resume and under torchrun).")
        run_dir = Path("runs") / f"{Path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"

    import torch

    from torchscn import training
    from torchscn.training.memory import keep_freed_memory

    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()
    with naming_flags(*flags):
        config.make_model(num_classes=2, in_channels=1)  # an impossible network fails before the data are loaded
        training.train(config, run_dir, data_dir=data_dir, resume=resume, device=device, quiet=quiet)
    if "RANK" in os.environ:
        _leave_at_once()


def _leave_at_once() -> None:
    """End one of several processes whose work is done, without Python's own way out.

    Gloo's threads outlive the group. One of them that lets go of a tensor while Python ends brings the process down,
    and torchrun takes the whole run for failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def spell_out_switches(arguments: list[str]) -> list[str]:
    """The arguments of ``scn train`` with "true" after every setting that is true or false and has no value.

    Example:
        >>> spell_out_switches(["train", "digits", "--compile", "--flip", "false"])
        ['train', 'digits', '--compile', 'true', '--flip', 'false']
    """
    if arguments[:1] != ["train"]:
        return arguments
    switches = {f"--{setting.name.replace('_', '-')}" for setting in describe_settings() if setting.choices == _SWITCH}
    spelled = []
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=True):
        spelled += [argument, "true"] if argument in switches and following.startswith("--") else [argument]
    return spelled


def recipes(name: str | None = None) -> None:
    """List the recipes and every setting they may contain, or show one recipe in full.

    Parameters
    ----------
    name
        Recipe to show.
    """
    if name is not None:
        print(load_recipe(name).to_json(), end="")
        return
    console = Console()
    table = Table("recipe", "what it trains", box=None)
    for recipe, description in list_recipes().items():
        table.add_row(plain(recipe), plain(description))
    console.print(table)
    console.print()
    console.print(_settings_table(describe_settings()), highlight=False)


def _settings_table(settings: list[SettingDescription]) -> Table:
    """One row per setting, under the name of its group."""
    table = Table("setting", "default", "meaning", box=None)
    group = ""
    for setting in settings:
        if setting.group != group:
            group = setting.group
            table.add_row()
            table.add_row(f"[bold]{escape(group)}[/bold]")
        choices = f" [{setting.choices.replace(', ', ' | ')}]" if setting.choices else ""
        table.add_row(*map(escape, (setting.name, setting.default, setting.meaning + choices)))
    return table
