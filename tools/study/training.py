"""Train the runs of a study that have no record yet."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.results import record_run, save_record
from tools.study.questions import Study, constant_width
from torchscn.models import MODELS
from torchscn.training import TrainConfig, load_recipe, train
from torchscn.training.run_folder import RunFolder

__all__ = ["Job", "list_jobs", "run_job"]


@dataclass(frozen=True)
class Job:
    """One run: a variant with a seed."""

    name: str  # of its folder and record
    config: TrainConfig


def list_jobs(study: Study) -> Iterator[Job]:
    """Every run of a study: all variants with the first seed, then those that need another one."""
    recipe = load_recipe(study.recipe).override(study.common)
    for seed in range(max([study.seeds, *(variant.seeds for variant in study.variants.values())])):
        for name, variant in study.variants.items():
            if seed < (variant.seeds or study.seeds):
                yield Job(f"{name}-{seed}", recipe.override(variant.settings).override({"seed": seed}))


def run_job(job: Job, runs: Path, records: Path, data_dir: Path | None) -> Path:
    """Train a run, going on where it stopped, and record it.

    Args:
        job: what to train.
        runs: where the folder of the run is, or will be.
        records: folder of the study's records.
        data_dir: where the data sets are; None uses ``TORCHSCN_DATA``.

    Returns:
        The file of the record.
    """
    MODELS.setdefault("constant4", constant_width)
    folder = runs / job.name
    train(job.config, folder, data_dir=data_dir, resume=RunFolder(folder).has_checkpoint())
    return save_record(records, record_run(folder))
