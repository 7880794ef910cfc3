"""``python -m tools.study``: update the pages of the studies, or train what a study still needs."""

import sys
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import App, Parameter

from tools import study
from tools.command import run_command
from torchscn.checks import check_choice

app = App(name="python -m tools.study", help="Questions put to the test by training.")

Records = Annotated[Path, Parameter(help="Folder with one folder of records for each study.")]


@app.default
def update(records: Records = Path("results"), docs: Path = Path("docs")) -> None:
    """Bring the pages of the studies up to date with their records.

    Parameters
    ----------
    docs
        Folder of claims.md and training.md.
    """
    for path in study.write_pages(records, docs):
        print(f"wrote {path}")


@app.command
def run(
    name: str,
    only: list[str] | None = None,
    *,
    runs: Path = Path("runs"),
    records: Records = Path("results"),
    data_dir: Path | None = None,
    threads: int = 1,
) -> None:
    """Train the runs of a study that have no record yet, one after the other; what was stopped goes on.

    Parameters
    ----------
    name
        claims or recipe.
    only
        Names of variants, to train only those.
    runs
        Folder with one folder of runs for each study.
    data_dir
        Folder of the data sets; TORCHSCN_DATA if not given.
    threads
        CPU threads.
    """
    check_choice("name", name, study.STUDIES)
    chosen = study.STUDIES[name]
    for variant in only or ():
        check_choice("only", variant, chosen.variants)
    torch.set_num_threads(threads)
    failed = []
    for job in study.list_jobs(chosen):
        wanted = not only or job.name.rpartition("-")[0] in only
        if wanted and not (records / name / f"{job.name}.json").exists():
            try:
                print(f"wrote {study.run_job(job, runs / name, records / name, data_dir)}")
            except (ValueError, RuntimeError, OSError) as error:  # the others do not need it
                failed.append(job.name)
                print(f"{job.name}: {error}", file=sys.stderr)
    if failed:
        raise RuntimeError(f"not trained: {', '.join(failed)}.")


@app.command
def noise(*, runs: Path = Path("runs"), records: Records = Path("results"), data_dir: Path | None = None) -> None:
    """Test SCN-1 and its twin, trained for the claims, on noisy images; those that have no record yet.

    Parameters
    ----------
    runs
        Folder with one folder of runs for each study.
    data_dir
        Folder of the data sets; TORCHSCN_DATA if not given.
    """
    folders = [folder for name in ("scn1", "cnn1") for folder in sorted((runs / "claims").glob(f"{name}-*"))]
    if not folders:
        raise ValueError(f"{runs / 'claims'} holds no run of scn1 or cnn1; `run claims scn1 cnn1` trains them.")
    for folder in folders:
        finished = (folder / "model.safetensors").exists()
        if finished and not (records / "noise" / f"{folder.name}.json").exists():
            print(f"wrote {study.measure_noise(folder, records / 'noise', data_dir)}")


def main(arguments: list[str] | None = None) -> None:
    run_command(app, arguments)


if __name__ == "__main__":
    main()
