"""Records of runs, and the pages made from them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchscn
from tools.results import (
    compare_storage,
    keep_comparisons,
    load_records,
    pack_weights,
    record_run,
    save_record,
    write_report,
)
from tools.results.__main__ import main
from tools.results.report import fill_page, make_tables
from torchscn import weights
from torchscn.training import TrainConfig, train
from torchscn.weights import read_weights

ROOT = Path(__file__).parent.parent.parent
QUICK = TrainConfig(epochs=2, batch_size=64, limit=256, options={"stem": 4})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits-scn1"
    train(QUICK, folder, quiet=True)
    return folder


@pytest.fixture
def unfinished(run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "unfinished"
    shutil.copytree(run, folder)
    first_line = (folder / "metrics.jsonl").read_text().splitlines()[0]
    (folder / "metrics.jsonl").write_text(first_line + "\n")
    return folder


def test_record_holds_what_makes_a_run_repeatable(run, tmp_path):
    record = record_run(run)
    assert record["name"] == "digits-scn1"
    assert (record["model"], record["data"], record["seed"], record["epochs"]) == ("scn1", "digits", 0, 2)
    assert record["settings"] == {"limit": 256, "stem": 4, "epochs": 2, "batch_size": 64}
    assert {"commit", "command", "torch", "kernel"} <= record["environment"].keys()
    assert [entry["epoch"] for entry in record["curve"]] == [1, 2]
    assert record["test_error"] == pytest.approx(record["curve"][-1]["test_error"], abs=1e-3)
    path = save_record(tmp_path / "kept", record)
    assert load_records(path.parent) == {"digits-scn1": json.loads(json.dumps(record))}


def test_unfinished_run_and_empty_folder(unfinished, tmp_path):
    with pytest.raises(ValueError, match="not finished: 1 of 2 epochs"):
        record_run(unfinished)
    with pytest.raises(ValueError, match="holds no records"):
        load_records(tmp_path / "nothing")


@pytest.mark.parametrize(
    "change",
    [None, "[]", {"name": 3}, {"curve": [3]}, {"environment": {}}, {"minutes": float("nan")}, {"epochs": True}],
)
def test_damaged_records_are_named(run, tmp_path, change):
    record = record_run(run)
    path = save_record(tmp_path, record)
    path.write_text(json.dumps(record | change) if isinstance(change, dict) else change or path.read_text()[:-9])
    with pytest.raises(ValueError, match=r"digits-scn1\.json is not "):
        load_records(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"), [("environment.json", "{"), ("environment.json", "{}"), ("metrics.jsonl", None)]
)
def test_runs_with_damaged_records_are_not_recorded(run, tmp_path, name, text):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    (folder / name).write_text(text or (folder / name).read_text().replace('"lr"', '"rate"'))
    with pytest.raises(ValueError, match=rf"{name} is "):
        record_run(folder)


TEST = ("test_loss", "test_error", "evaluation_seconds", "layers")


def without_test(run: Path, folder: Path, epoch: int) -> Path:
    """A copy of a run, not tested in this epoch; an epoch takes a minute, a test half of one."""
    copy = Path(shutil.copytree(run, folder))
    metrics = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    metrics = [entry | {"seconds": 60.0, "evaluation_seconds": 30.0} for entry in metrics]
    metrics[epoch - 1] = {name: value for name, value in metrics[epoch - 1].items() if name not in TEST}
    (copy / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    return copy


def test_a_run_with_fewer_tests_is_recorded(run, tmp_path):
    record = record_run(without_test(run, tmp_path / "digits-scn1", epoch=1))
    assert record["test_error"] == record_run(run)["test_error"]
    assert ["test_error" in entry for entry in record["curve"]] == [False, True]
    assert record["minutes"] == 2.5
    save_record(tmp_path / "records", record)
    for name in ("results.md", "README.md"):
        (tmp_path / name).write_text("")
    *_, picture = write_report(tmp_path / "records", tmp_path, tmp_path / "README.md")
    assert picture.name == "curves.png"


def test_a_run_without_its_last_test_is_not_recorded(run, tmp_path):
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: its last epoch, 'test_error' is missing"):
        record_run(without_test(run, tmp_path / "run", epoch=2))


@pytest.mark.parametrize("which", ["train_loss", "test_loss"])
@pytest.mark.parametrize(("loss", "kept"), [(1.78040263e20, 1.7804e20), (float("inf"), None), (float("nan"), None)])
def test_a_run_whose_loss_exploded_is_recorded(run, tmp_path, which, loss, kept):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics[0][which] = loss
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    path = save_record(tmp_path / "kept", record_run(folder))
    (record,) = load_records(path.parent).values()
    assert record["curve"][0][which] == pytest.approx(kept)


def test_solvers_agree_from_the_command_line(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["add", str(run), "--compare", "200", "--records", str(tmp_path)])
    assert ended.value.code == 0
    record = load_records(tmp_path)["digits-scn1"]
    errors = [row["error"] for row in record["solvers"]]
    assert [row["solver"] for row in record["solvers"]] == ["coordinate", "coordinate", "fista", "active_set"]
    assert max(errors) - min(errors) < 2
    assert {row["images"] for row in record["solvers"]} == {200}
    tight, exact = record["solvers"][0], record["solvers"][3]
    assert tight["error"] == exact["error"]
    assert exact["other_answers"] == 0


def test_a_comparison_tells_the_seed_where_it_must(run):
    stored = {"stored_as": "float16", "error": 1.0, "other_answers": 0.0}
    first = record_run(run) | {"storage": [stored], "seed": 1}
    assert "| SCN-1, digits, 2 epochs | float16 |" in make_tables({"a": first})["storage"]
    rows = make_tables({"a": first, "b": first | {"name": "b", "seed": 2}})["storage"].splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [f"| SCN-1, digits, 2 epochs, seed {seed}" for seed in (1, 2)]


def test_weights_are_packed_with_card_and_hash(run, tmp_path, monkeypatch):
    record = record_run(run)
    with pytest.raises(ValueError, match="--compare"):
        pack_weights(run, record, tmp_path)
    record["storage"] = compare_storage(run, None)
    path = pack_weights(run, record, tmp_path)
    kept = read_weights(path)
    assert kept.model["classifier.weight"].dtype == torch.float16
    assert kept.about["options"] == {"stem": 4}
    assert "| classes | 0, 1, 2" in path.with_suffix(".md").read_text()
    monkeypatch.setattr(weights, "pretrained_folder", lambda: tmp_path)
    weights._known_hashes.cache_clear()
    assert weights.load_pretrained("scn1-digits").about == kept.about
    weights._known_hashes.cache_clear()


def test_report_of_a_run(run, tmp_path):
    save_record(tmp_path / "kept", record_run(run))
    (tmp_path / "results.md").write_text("# Page\n<!-- begin runs -->old<!-- end runs -->\n")
    (tmp_path / "README.md").write_text("<!-- begin summary --><!-- end summary -->")
    written = write_report(tmp_path / "kept", tmp_path, tmp_path / "README.md")
    assert {path.name for path in written} == {"results.md", "README.md", "curves.png"}
    page = (tmp_path / "results.md").read_text()
    assert "old" not in page
    assert "| [digits-scn1](../results/digits-scn1.json) |" in page


def test_weights_of_a_preset_are_loaded_as_they_were_trained(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    result = train(QUICK.override({"preset": "authors", "max_iter": 5, "epochs": 1}), folder, quiet=True)
    pack_weights(folder, record_run(folder) | {"storage": compare_storage(folder, None)}, tmp_path)
    monkeypatch.setattr(weights, "pretrained_folder", lambda: tmp_path)
    weights._known_hashes.cache_clear()
    layer = torchscn.create_model("scn1", pretrained="digits").blocks[0][1]
    weights._known_hashes.cache_clear()
    trained = result.model.blocks[0][1]
    assert (layer.lam2, layer.solver, layer.tol, layer.max_iter) == (1e-6, "fista", 0.0, 5)
    assert (trained.lam2, trained.solver, trained.tol, trained.max_iter) == (1e-6, "fista", 0.0, 5)


def test_comparisons_are_kept_when_a_run_is_recorded_again(run, tmp_path):
    first = record_run(run) | {"storage": [{"stored_as": "float32"}]}
    save_record(tmp_path, first)
    again = record_run(run)
    keep_comparisons(tmp_path, again)
    assert again["storage"] == first["storage"]
    other = record_run(run) | {"curve": []}
    keep_comparisons(tmp_path, other)
    assert "storage" not in other


def test_report_of_data_and_networks_the_paper_does_not_have(run, tmp_path):
    own = record_run(run) | {"data": "folder:pictures"}
    save_record(tmp_path / "kept", own)
    save_record(tmp_path / "kept", own | {"name": "twin", "model": "cnn1"})
    for page in ("results.md", "README.md"):
        (tmp_path / page).write_text("<!-- begin runs --><!-- end runs --><!-- begin widths --><!-- end widths -->")
    written = write_report(tmp_path / "kept", tmp_path, tmp_path / "README.md")
    assert {path.name for path in written} == {"results.md", "README.md", "curves.png"}


def test_widths_are_compared_from_random_weights(run, tmp_path):
    one = record_run(run) | {"data": "cifar10", "settings": {"optimizer": "muon"}}
    wide = one | {"name": "wide", "model": "scn4", "parameters": 690_000, "test_error": 7.0}
    others = [
        wide | {"name": "worse", "test_error": 8.0, "epochs": 1},
        wide | {"name": "descent", "test_error": 6.0, "settings": {}},
        wide | {"name": "on", "test_error": 6.0, "settings": {"optimizer": "muon", "start_from": "scn4-cifar10"}},
        wide | {"name": "long", "test_error": 6.0, "epochs": 60},
        wide | {"name": "twin", "model": "cnn4"},
    ]
    runs = {record["name"]: record for record in (wide, *others, one)}
    rows = make_tables(runs)["widths"].splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| SCN-1", "| SCN-4"]
    assert "| 690,000 | 7.00 |" in rows[1]
    for record in runs.values():
        save_record(tmp_path / "kept", record)
    for page in ("results.md", "README.md"):
        (tmp_path / page).write_text("")
    assert write_report(tmp_path / "kept", tmp_path, tmp_path / "README.md")[-1].name == "widths.png"


def test_runs_tested_on_validation_images_are_left_out(run, tmp_path):
    save_record(tmp_path / "kept", record_run(run))
    tuning = record_run(run) | {"name": "tuning", "tested_on": "validation images"}
    save_record(tmp_path / "kept", tuning)
    for page in ("results.md", "README.md"):
        (tmp_path / page).write_text("<!-- begin runs --><!-- end runs -->")
    write_report(tmp_path / "kept", tmp_path, tmp_path / "README.md")
    page = (tmp_path / "results.md").read_text()
    assert "digits-scn1" in page
    assert "tuning" not in page


def test_only_networks_of_the_same_recipe_are_twins(run):
    network = record_run(run)
    longer = network | {"name": "longer", "model": "cnn1", "settings": network["settings"] | {"epochs": 5}}
    assert "CNN-1" not in make_tables({"network": network, "longer": longer})["twins"]
    twin = longer | {"settings": network["settings"] | {"model": "cnn1"}}
    assert "CNN-1" in make_tables({"network": network, "twin": twin})["twins"]


def test_paper_tables_show_the_best_run(run):
    short = record_run(run) | {"name": "short", "data": "cifar10", "epochs": 3, "test_error": 44.0}
    long = short | {"name": "long", "epochs": 30, "test_error": 11.0}
    other = short | {"name": "other", "data": "cifar100", "epochs": 2, "test_error": 66.0, "parameters": 9_000_000}
    table = make_tables({"long": long, "short": short, "other": other})["cifar"]
    assert "| **11.00** | **66.00** | 30, 2 |" in table
    assert "9.00M" not in table
    assert "44.00" not in table
    added = long | {"name": "added", "test_error": 9.0, "settings": {"shortcuts": "pooled"}}
    table = make_tables({"long": long, "added": added})["cifar"]
    assert "| **SCN-1, torchscn** | 0.17M | 15 | **11.00** | - | 30 |" in table
    assert "| **SCN-1, pooled shortcuts, torchscn** | 0.17M | 15 | **9.00** | - | 30 |" in table
    assert "| 9.00 | - | - |" in make_tables({"added": added})["runs"], "the paper has no such network"


WATCHED = {"test_every": 9, "checkpoint_seconds": 5.0, "tensorboard": True}  # what does not change the weights


def test_seeds_of_a_recipe_stand_in_the_tables_with_their_mean(run):
    environment = record_run(run)["environment"] | {"threads": 2}
    first = record_run(run) | {"name": "first", "data": "mnist", "model": "scn4", "test_error": 0.50, "minutes": 60.0}
    first |= {"environment": environment}
    second = first | {"name": "second", "seed": 1, "settings": first["settings"] | {"seed": 1}, "test_error": 0.30}
    second |= {"minutes": 120.0, "environment": environment | {"threads": 1}}
    tested_less = second | {"name": "third", "seed": 2, "settings": first["settings"] | {"seed": 2} | WATCHED}
    again = first | {"name": "first-again", "test_error": 9.0}  # no second sample of this seed
    runs = (second, tested_less | {"test_error": 0.40}, first, again)
    tables = make_tables({record["name"]: record for record in runs})
    assert "| **0.40 ± 0.06** | 2 (mean of 3 runs) |" in tables["mnist"]
    assert "0.40 ± 0.06" in tables["summary"]
    assert "2 epochs, 1.7 hours, CPU threads: 2 or 1, mean of 3 runs |" in tables["summary"]
    assert all(f"| {error} |" in tables["runs"] for error in ("0.50", "0.30", "0.40", "9.00"))


def test_runs_from_other_weights_are_not_seeds_of_one_recipe(run):
    first = record_run(run)
    start = {"name": "scn1-digits", "sha256": "a" * 64, "epochs": 3}
    first |= {"settings": first["settings"] | {"start_from": "scn1-digits"}, "test_error": 3.0}
    first |= {"environment": first["environment"] | {"started_from": start}}
    other = first | {"seed": 1, "settings": first["settings"] | {"seed": 1}, "test_error": 2.0}
    tables = make_tables({"first": first, "other": other})
    assert "| 2.50 ± 0.50 |" in tables["summary"]
    spelt = other | {"settings": other["settings"] | {"start_from": "runs/digits-scn1"}}
    assert "| 2.50 ± 0.50 |" in make_tables({"first": first, "other": spelt})["summary"]
    other |= {"environment": other["environment"] | {"started_from": start | {"sha256": "b" * 64}}}
    assert "| 2.00 |" in make_tables({"first": first, "other": other})["summary"]


def test_the_curves_of_all_seeds_are_drawn_under_one_label(run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: drawn.append(figure))
    first = record_run(run)
    second = first | {"name": "second", "seed": 1, "settings": first["settings"] | {"seed": 1}}
    for record in (first, second):
        save_record(tmp_path / "records", record)
    for name in ("results.md", "README.md"):
        (tmp_path / name).write_text("")
    write_report(tmp_path / "records", tmp_path, tmp_path / "README.md")
    (axes,) = drawn[0].axes
    assert len(axes.lines) == 4, "test and training errors of two runs"
    assert [line.get_marker() for line in axes.lines[::2]] == ["o", "o"], "a single test is a dot"
    assert len(axes.get_legend().get_texts()) == 1


def test_widths_show_the_means_of_all_seeds(run):
    settings = {"optimizer": "muon", "epochs": 30}
    first = record_run(run) | {"data": "cifar10", "model": "scn4", "settings": settings, "epochs": 30}
    first |= {"test_error": 8.0, "train_error": 1.0}
    second = first | {"seed": 1, "settings": settings | {"seed": 1}, "test_error": 9.0, "train_error": 5.0}
    assert "| 8.50 ± 0.50 | 3.00 | 30 (mean of 2 runs) |" in make_tables({"a": first, "b": second})["widths"]


def test_a_lucky_seed_does_not_stand_for_its_recipe(run):
    first = record_run(run) | {"name": "first", "data": "cifar10", "test_error": 12.0}
    lucky = first | {"name": "lucky", "seed": 1, "settings": first["settings"] | {"seed": 1}, "test_error": 8.0}
    better = first | {"name": "better", "epochs": 60, "settings": {"epochs": 60}, "test_error": 9.0}
    tables = make_tables({record["name"]: record for record in (first, lucky, better)})
    assert "| **9.00** | - | 60 |" in tables["cifar"]
    assert "± " not in tables["cifar"]


def test_the_summary_leads_with_the_largest_networks(run):
    one = record_run(run)
    runs = {
        name: one | {"name": name, "model": model, "data": data, "parameters": size}
        for name, model, data, size in [
            ("a", "cnn4", "cifar10", 700_000),
            ("b", "scn1", "cifar10", 170_000),
            ("c", "scn4", "mnist", 690_000),
            ("d", "scn4", "cifar10", 690_000),
            ("e", "scn1", "digits", 1000),
        ]
    }
    first = [line.split(" | ")[0].strip("| ") for line in make_tables(runs)["summary"].splitlines()[2:]]
    assert first == [
        "SCN-4 on CIFAR-10",
        "SCN-1 on CIFAR-10",
        "SCN-4 on MNIST",
        "SCN-1 on digits",
        "CNN-4 on CIFAR-10",
    ]


def test_times_stand_beside_those_of_the_paper(run):
    ours = record_run(run) | {"model": "scn4", "data": "mnist", "minutes": 90.0, "evaluation_seconds": 12.3}
    table = make_tables({"ours": ours})["times"]
    threads = ours["environment"]["threads"]
    assert f"| MNIST, torchscn | CPU, threads: {threads} | 1.5 | 12 | 2 |\n| MNIST, paper | four Tesla" in table


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("scn train digits --run-dir /home/me/runs/x --lr 1/2", "scn train digits --run-dir runs/x --lr 1/2"),
        (
            "scn train digits --run-dir=/x --data folder:/me/photos/cats",
            "scn train digits --run-dir=x --data folder:photos/cats",
        ),
        ("scn train digits --run-dir '/home/me and you/my runs/x'", "scn train digits --run-dir 'my runs/x'"),
        ("scn train digits --run-dir /me/don't", "scn train digits --run-dir 'me/don'\"'\"'t'"),
        ("python -m tools.study run claims", "python -m tools.study run claims"),
        ("scn train a / b --run-dir /home/me/runs/x/", "scn train a / b --run-dir runs/x"),
    ],
)
def test_records_do_not_tell_where_folders_are(run, tmp_path, typed, kept):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "environment.json"
    again = {"after_epochs": 1, "threads": 1, "commit": "a", "command": f"{typed} --resume"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": typed, "resumed": [again]}))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"data": "folder:/home/me/my photos/cats"}))
    record = record_run(folder)
    assert record["data"] == record["settings"]["data"] == "folder:my photos/cats"
    environment = record["environment"]
    assert environment["command"] == kept
    assert environment["resumed"][0]["command"] == f"{kept} --resume"


def test_epochs_of_the_network_a_run_started_from_are_told(run, tmp_path):
    folder = tmp_path / "next"
    train(QUICK.override({"start_from": str(run), "epochs": 1}), folder, quiet=True)
    record = record_run(folder) | {"model": "scn4", "data": "cifar10"}
    tables = make_tables({"next": record})
    assert "| 2 + 1 epochs, " in tables["summary"]
    assert "hours for the last 1, CPU" in tables["summary"]
    assert "| 2 + 1 |" in tables["runs"]
    assert "torchscn" not in tables["times"], "its hours are not those of the whole training"
    record = record_run(folder) | {"storage": compare_storage(folder, None)}
    path = pack_weights(folder, record, tmp_path)
    assert read_weights(path).about["epochs"] == 3
    card = path.with_suffix(".md").read_text()
    assert "2 + 1 epochs" in card
    hashed = weights.file_hash(run / "model.safetensors")
    name = "/".join(run.parts[-2:])
    assert f"| started from | what was {name} then (SHA-256 of the file: {hashed}); the minutes do not" in card


def test_a_start_is_not_forgotten_with_the_environment(run, tmp_path):
    folder = tmp_path / "next"
    train(QUICK.override({"start_from": str(run), "epochs": 1}), folder, quiet=True)
    path = folder / "environment.json"
    environment = json.loads(path.read_text())
    del environment["started_from"]  # what a resumed run writes anew does not know it
    path.write_text(json.dumps(environment))
    record = record_run(folder) | {"model": "scn4", "data": "cifar10"}
    tables = make_tables({"next": record})
    assert "| ? + 1 epochs, " in tables["summary"]
    assert "torchscn" not in tables["times"]
    packed = pack_weights(folder, record | {"storage": compare_storage(folder, None)}, tmp_path)
    assert "random weights" not in packed.with_suffix(".md").read_text()


def test_place_without_a_table():
    with pytest.raises(ValueError, match="no table 'nonsense'"):
        fill_page("<!-- begin nonsense --><!-- end nonsense -->", {"runs": ""})


@pytest.mark.parametrize("page", ["docs/results.md", "README.md"])
def test_pages_show_the_records(page):
    """Every table in the pages is what the recorded runs say."""
    text = (ROOT / page).read_text()
    assert fill_page(text, make_tables(load_records(ROOT / "results"))) == text


def test_a_mistake_ends_in_one_sentence(unfinished, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["add", str(unfinished), "--records", str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"tools.results: the run in {unfinished} is not finished")


def test_the_command_runs_from_the_root_of_a_checkout():
    command = [sys.executable, "-m", "tools.results", "--help"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Bring tables and pictures up to date" in out
    assert "add" in out
    assert "pack" in out
