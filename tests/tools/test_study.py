"""Studies: which runs they need, how those are trained and recorded, and the pages made from them."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import torchscn
from tools.results import load_records, save_record
from tools.study import STUDIES, Job, list_jobs, run_job, write_pages
from tools.study.__main__ import main
from tools.study.noise import ADAPTED, AS_TRAINED, NOISES, RAISES, adapt_lam1, add_noise
from tools.study.questions import Question, Study, Variant
from torchscn.models import MODELS, create_model
from torchscn.options import NetworkOptions
from torchscn.training import DivergenceError, Interrupted, load_recipe

ROOT = Path(__file__).parents[2]
TINY = Study(
    recipe="digits",
    common={"epochs": 1, "limit": 64, "stem": 4},
    seeds=2,
    variants={
        "small": Variant("small"),
        "other": Variant("other", {"lr": 0.01}),
        "more": Variant("more", seeds=3, beside="small"),
    },
    questions=(Question("Small is better.", "us", (("small", "other"),)),),
)
PAGES = {
    "claims.md": "".join(
        f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in ("claims", "claim-runs", "noise", "noise-claims")
    ),
    "training.md": "<!-- begin recipe -->\n<!-- end recipe -->\n",
}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(STUDIES, "claims", TINY)
    monkeypatch.setattr("tools.study.training.MODELS", dict(MODELS))
    return TINY


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", STUDIES)
def test_records_have_the_settings_of_their_study(name):
    wanted = {job.name: job.config.changed_settings() for job in list_jobs(STUDIES[name])}
    for record in load_records(ROOT / "results" / name).values():
        assert record["settings"] == json.loads(json.dumps(wanted[record["name"]])), record["name"]


def record_errors(folder: Path, errors: dict[str, float]) -> None:
    """Records of runs with these errors, their names ending in the seed."""
    for name, error in errors.items():
        record = {
            "name": name,
            **dict.fromkeys(("model", "data", "tested_on"), "x"),
            **dict.fromkeys(("parameters", "epochs"), 1000),
            "seed": int(name[-1]),
            "test_error": error,
            **dict.fromkeys(("train_error", "minutes", "images_per_second"), 1.0),
            "settings": {},
            "environment": {"command": "", "threads": 1, "commit": ""},
            "curve": [],
        }
        save_record(folder, record)


def call(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_every_run_has_one_name_and_settings_that_exist():
    for study in STUDIES.values():
        jobs = list(list_jobs(study))
        assert len({job.name for job in jobs}) == len(jobs)
        assert len({job.config for job in jobs}) == len(jobs), "two variants are the same"
        for question in study.questions:
            assert {name for pair in question.pairs for name in pair} <= study.variants.keys()
            counts = [study.variants[name].seeds or study.seeds for pair in question.pairs for name in pair]
            assert min(counts) >= 3
        assert {variant.beside for variant in study.variants.values()} <= {"", *study.variants}


def test_seeds_come_one_after_the_other(tiny):
    names = [job.name for job in list_jobs(tiny)]
    assert names == ["small-0", "other-0", "more-0", "small-1", "other-1", "more-1", "more-2"]


def test_constant_width_has_the_parameters_of_scn4(monkeypatch, tmp_path):
    models = dict(MODELS)
    monkeypatch.setattr("tools.study.training.MODELS", models)
    monkeypatch.setattr("tools.study.training.train", lambda *_, **__: None)
    monkeypatch.setattr("tools.study.training.record_run", lambda folder: {"name": folder.name})
    run_job(next(list_jobs(TINY)), tmp_path, tmp_path, None)
    ours, theirs = (
        sum(p.numel() for p in net.parameters())
        for net in (models["constant4"](10, 3, NetworkOptions()), create_model("scn4"))
    )
    assert abs(ours - theirs) < 0.01 * theirs


def test_what_is_missing_is_trained_and_recorded(tiny, tmp_path, capsys):
    where = ["--runs", str(tmp_path / "runs"), "--records", str(tmp_path / "records")]
    call(["run", "claims", "small", *where])
    records = load_records(tmp_path / "records" / "claims")
    assert sorted(records) == ["small-0", "small-1"]
    assert [records[f"small-{seed}"]["seed"] for seed in (0, 1)] == [0, 1]
    capsys.readouterr()
    call(["run", "claims", "small", *where])
    assert capsys.readouterr().out == "", "nothing is trained twice"


def test_a_run_that_was_stopped_goes_on(tiny, tmp_path):
    job = next(list_jobs(tiny))
    run_job(job, tmp_path / "runs", tmp_path, None)
    weights = tmp_path / "runs" / job.name / "model.safetensors"
    weights.unlink()
    run_job(job, tmp_path / "runs", tmp_path, None)
    assert weights.exists()


@pytest.mark.parametrize(
    ("errors", "verdict", "gain"),
    [
        ({"small-0": 10.0, "small-1": 11.0, "other-0": 12.0, "other-1": 13.2}, "holds", "2.10 ± 0.10"),
        ({"small-0": 10.0, "small-1": 11.0, "other-0": 12.0, "other-1": 14.0}, "leans to yes", "2.50 ± 0.50"),
        ({"small-0": 12.0, "small-1": 13.2, "other-0": 10.0, "other-1": 11.0}, "fails", "-2.10 ± 0.10"),
        ({"small-0": 10.0, "small-1": 13.0, "other-0": 12.0, "other-1": 11.0}, "undecided", "0.00 ± 2.00"),
        ({"small-0": 10.0, "other-0": 12.0, "other-1": 11.0}, "open (1 of 2 seeds)", "2.00"),
        ({"small-0": 10.0}, "open (0 of 2 seeds)", ""),
    ],
)
def test_the_page_of_claims(tiny, docs, tmp_path, errors, verdict, gain):
    record_errors(tmp_path / "records" / "claims", errors)
    written = write_pages(tmp_path / "records", docs)
    assert written == [docs / "claims.md", docs / "training.md", docs / "results" / "claims.png"]
    text = (docs / "claims.md").read_text()
    row = next(line for line in text.splitlines() if "Small is better." in line)
    assert row.endswith(f"| {verdict} | {gain} |")
    assert (docs / "results" / "claims.png").stat().st_size > 1000


def test_a_gain_is_over_the_seeds_of_both(docs, tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES, "recipe", TINY)
    record_errors(tmp_path / "recipe", {"small-0": 9.0, "small-1": 8.0, "more-0": 7.0, "more-1": 5.0, "more-2": 9.0})
    write_pages(tmp_path, docs)
    rows = (docs / "training.md").read_text().splitlines()
    assert "| small | 1,000 | 8.50 ± 0.50 | 2 |  |" in rows
    assert "| more | 1,000 | 7.00 ± 1.15 | 3 | 2.50 ± 0.50 |" in rows


def test_without_records_there_are_questions_and_no_picture(tiny, docs, tmp_path):
    assert write_pages(tmp_path, docs) == [docs / "claims.md", docs / "training.md"]
    assert "open (0 of 2 seeds)" in (docs / "claims.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"), [(["claim"], "Did you mean 'claims'"), (["claims", "scn3"], "only='scn3'")]
)
def test_unknown_names_are_refused(capsys, arguments, words):
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    assert caught.value.code == 1
    assert words in capsys.readouterr().err


def test_the_pages_show_the_records(tmp_path):
    root = Path(__file__).parent.parent.parent
    for name in PAGES:
        shutil.copy(root / "docs" / name, tmp_path)
    write_pages(root / "results", tmp_path)
    for name in PAGES:
        assert (tmp_path / name).read_text() == (root / "docs" / name).read_text()


def test_one_run_that_fails_does_not_stop_the_others(tiny, tmp_path, monkeypatch, capsys):
    def run(job, *_):
        if job.name == "small-0":
            raise DivergenceError("the loss became nan.")
        return job.name

    monkeypatch.setattr("tools.study.run_job", run)
    with pytest.raises(SystemExit) as ended:
        main(["run", "claims", "--runs", str(tmp_path), "--records", str(tmp_path)])
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert "wrote more-2" in out
    assert err == "small-0: the loss became nan.\ntools.study: not trained: small-0.\n"


def test_ctrl_c_ends_without_a_traceback(tiny, tmp_path, monkeypatch, capsys):
    def run(*_):
        raise Interrupted("stopped in epoch 1", 2)

    monkeypatch.setattr("tools.study.run_job", run)
    with pytest.raises(SystemExit) as ended:
        main(["run", "claims", "--runs", str(tmp_path), "--records", str(tmp_path)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "\nstopped in epoch 1\n"


def test_noise_needs_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["noise", "--runs", str(tmp_path)])
    assert "holds no run of scn1 or cnn1" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["scn1", "cnn1"])
def test_noise_is_measured_and_shown(tiny, docs, tmp_path, monkeypatch, model):
    settings = {"model": model, "validation": 60, "epochs": 2, "limit": 640}
    for seed in (0, 1):
        config = load_recipe("digits").override(settings | {"seed": seed})
        run_job(Job(f"{model}-{seed}", config), tmp_path / "runs" / "claims", tmp_path, None)
    records = tmp_path / "records"
    call(["noise", "--runs", str(tmp_path / "runs"), "--records", str(records)])
    rows = json.loads((records / "noise" / f"{model}-0.json").read_text())["rows"]
    treatments = [AS_TRAINED, *(f"raised by {value:g}" for value in RAISES), ADAPTED]
    expected = treatments if model == "scn1" else [AS_TRAINED]
    assert [(row["noise"], row["lam1"]) for row in rows] == [(noise, name) for noise in NOISES for name in expected]
    assert all(0 <= row["error"] <= 100 for row in rows)
    write_pages(records, docs)
    text = (docs / "claims.md").read_text()
    shown = "SCN-1, lam1 as trained" if model == "scn1" else "CNN-1"
    row = next(line for line in text.splitlines() if line.startswith(f"| {shown} |"))
    assert row.count("±") == len(NOISES)


def test_lam1_is_adapted_to_the_noise_and_given_back():
    model = torchscn.create_model("scn4", pretrained="mnist")
    images = (torch.arange(28) * 9).to(torch.uint8).expand(40, 1, 28, 28)
    own = model.blocks[0][1].lam1.detach().clone()
    raised = [adapt_lam1(model, add_noise(images, noise), images, noise) for noise in (0, 20, 60)]
    assert 0 <= raised[0] < 0.01
    assert raised[0] <= raised[1] < raised[2]
    assert torch.equal(model.blocks[0][1].lam1, own)


def test_noise_is_the_same_for_everyone():
    images = torch.full((500, 1, 9, 9), 128, dtype=torch.uint8)
    noisy = add_noise(images, 20.0)
    assert torch.equal(noisy, add_noise(images, 20.0))
    assert torch.equal(add_noise(images, 0.0), images)
    assert (noisy.float() - 128).std().item() == pytest.approx(20, rel=0.05)
