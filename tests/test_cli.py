"""The command line: what it prints, how it fails, and that it does not keep people waiting."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

import torchscn
from torchscn import data
from torchscn.cli import main, predict, train
from torchscn.cli.train import spell_out_switches
from torchscn.training import Interrupted, TrainConfig
from torchscn.training import train as train_network
from torchscn.training.config import describe_settings, list_recipes
from torchscn.training.run_folder import RunFolder

QUICK = (["--help"], ["--version"], ["recipes"], ["train", "--help"], ["recipes", "digits"])


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits-scn1"
    train_network(TrainConfig(epochs=1, batch_size=64, limit=256, options={"stem": 4}), folder, quiet=True)
    return folder


def run_scn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchscn", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", QUICK)
def test_what_needs_no_torch_does_not_import_it(arguments):
    code = (
        "import sys\n"
        "from torchscn.cli import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def cpu_seconds(*arguments: str) -> float:
    """What a Python program costs, in CPU time, which other work on the machine changes less than the clock's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def import_of_torch() -> float:
    return cpu_seconds("-c", "import torch")


@pytest.mark.parametrize("arguments", QUICK[:3])
def test_what_needs_no_torch_is_there_at_once(arguments, import_of_torch):
    """Beside what everybody knows to be slow, because processors differ."""
    assert min(cpu_seconds("-m", "torchscn", *arguments) for _ in range(3)) < import_of_torch / 3


def test_help_lists_the_commands(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for command in ("train", "recipes", "eval", "predict", "data", "bench", "info"):
        assert f"│ {command} " in out
    assert "results" not in out


def test_recipes_shows_every_recipe_and_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(capsys, "recipes")
    assert code == 0
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.split()}
    assert list_recipes().keys() <= rows.keys()
    for setting in describe_settings():
        assert setting.name in rows
        assert setting.group in rows
        assert " ".join(setting.meaning.split()) in " ".join(out.split())
    assert rows["schedule"].startswith("schedule cosine")
    assert rows["schedule"].endswith("[cosine | onecycle | steps]")


def test_one_recipe_in_full(capsys):
    code, out, _ = call(capsys, "recipes", "digits")
    assert code == 0
    assert '"data": "digits"' in out


def test_training_from_the_command_line(tmp_path, capsys):
    settings = ["--epochs", "1", "--limit", "64", "--batch-size", "32", "--stem", "4"]
    code, out, _ = call(capsys, "train", "digits", "--run-dir", str(tmp_path / "run"), *settings)
    assert code == 0
    assert "final test error" in out
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_one_of_several_processes_leaves_at_once(tmp_path, monkeypatch, capsys):
    """Python's own way out can abort a process whose gloo threads still run."""
    codes = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("torchscn.training.train", lambda *_, **__: None)
    monkeypatch.setattr("os._exit", codes.append)
    call(capsys, "train", "digits", "--run-dir", str(tmp_path))
    assert codes == [0]
    monkeypatch.delenv("RANK")
    call(capsys, "train", "digits", "--run-dir", str(tmp_path))
    assert codes == [0]


def test_resuming_needs_the_run_folder(capsys):
    code, _, err = call(capsys, "train", "digits", "--resume")
    assert code == 1
    assert err.startswith("scn: name the run folder: --run-dir DIR")


def test_evaluation_and_prediction(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    picture = Path("one[small].png")
    PIL.Image.fromarray(data.load("digits", "test").images[0, 0].numpy()).save(picture)
    code, out, _ = call(capsys, "eval", str(run), "--confusion")
    assert code == 0
    assert f"test error {RunFolder(run).read_metrics()[-1]['test_error']:.2f}%" in out
    assert "true \\ answer" in out
    assert "blocks.13.1" in out
    code, out, _ = call(capsys, "predict", str(run), str(picture), "--top", "2")
    assert code == 0
    assert "one[small].png" in out
    assert out.count("%") == 2


def test_evaluation_with_mirror_images(run, capsys):
    code, out, _ = call(capsys, "eval", str(run), "--mirror")
    assert code == 0
    assert "% (with mirror images)" in out


def test_evaluation_with_another_solver(run, capsys):
    code, out, _ = call(capsys, "eval", str(run), "--solver", "fista", "--tol", "0", "--max-iter", "5")
    assert code == 0
    (first_layer,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["blocks.0.1"])
    assert first_layer[1] == "5.0"


def write_digits(folder: Path, n_images: int) -> list[Path]:
    """Test images of the digits as files, in folders inside folders."""
    paths = []
    for number, image in enumerate(data.load("digits", "test").images[:n_images, 0].numpy()):
        paths.append(folder / str(number % 3) / f"{number}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image).save(paths[-1])
    return sorted(paths)


def test_folders_are_answered_like_their_images_one_by_one(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predict, "BATCH", 4)  # so that ten images are several batches
    paths = write_digits(tmp_path, 10)
    code, out, err = call(capsys, "predict", str(run), str(tmp_path), "--json", "--top", "99")
    assert (code, err) == (0, "")
    together = [json.loads(line) for line in out.splitlines()]
    assert [answer["image"] for answer in together] == list(map(str, paths))
    model = torchscn.load_trained(run).model
    for entry, path in zip(together, paths, strict=True):
        pixels = data.read_image(path, 1, (8, 8))
        shares = model(model.preprocess(pixels[None])).softmax(1)[0].tolist()
        expected = dict(zip(model.classes, shares, strict=True))
        assert {answer["class"]: answer["share"] for answer in entry["answers"]} == pytest.approx(expected, abs=1e-4)
        assert [a["share"] for a in entry["answers"]] == sorted((a["share"] for a in entry["answers"]), reverse=True)


def test_a_bad_file_does_not_keep_the_others_from_an_answer(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    good = write_digits(tmp_path, 2)
    bad, empty = tmp_path / "bad.png", tmp_path / "empty"
    bad.write_text("not an image")
    empty.mkdir()
    arguments = [str(run), str(good[0]), str(bad), str(empty), str(good[1])]
    code, out, err = call(capsys, "predict", *arguments)
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(map(str, good))
    about_file, about_folder = err.splitlines()
    assert about_file.startswith(f"scn: {bad} cannot be read as an image")
    assert about_folder.startswith(f"scn: {empty} holds no images")
    code, out, _ = call(capsys, "predict", *arguments, "--json")
    entries = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [entry["image"] for entry in entries] == arguments[1:]
    assert ["error" in entry for entry in entries] == ["answers" not in entry for entry in entries]
    assert ["error" in entry for entry in entries] == [False, True, True, False]


def test_names_are_shown_as_they_are_and_do_no_harm(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["[red]x[-].png", "[1].png", ":cat:.png", "a\x1b[31m.png"]
    for name in names:
        PIL.Image.new("L", (8, 8)).save(name)
    load_trained = torchscn.training.load_trained

    def with_odd_classes(run):
        trained = load_trained(run)
        trained.model.classes = tuple(f"[b]{name}\x1b]0;title\x07" for name in trained.model.classes)
        return trained

    monkeypatch.setattr("torchscn.training.load_trained", with_odd_classes)
    code, out, _ = call(capsys, "predict", str(run), *names, "--top", "1")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [*names[:3], r"a\x1b[31m.png"]
    assert all(r"\x1b]0;title\x07" in line and "[b]" in line for line in out.splitlines()[1:])
    assert "\x1b" not in out
    _, out, err = call(capsys, "predict", str(run), "gone\x1b[2J.png")
    assert err == "scn: gone\\x1b[2J.png does not exist.\n"


def test_classes_of_an_evaluation_do_no_harm(run, monkeypatch, capsys):
    batches = torchscn.training.evaluation_batches

    def with_odd_classes(*arguments):
        made = batches(*arguments)
        object.__setattr__(made.images, "classes", tuple(f"[b]{name}\x1b[2J" for name in made.images.classes))
        return made

    monkeypatch.setattr("torchscn.training.evaluation_batches", with_odd_classes)
    monkeypatch.setenv("COLUMNS", "300")
    code, out, _ = call(capsys, "eval", str(run), "--confusion")
    assert code == 0
    assert r"[b]3\x1b[2J" in out
    assert "\x1b" not in out


def test_a_part_of_an_answer_is_no_whole_number(capsys):
    code, _, err = call(capsys, "predict", "scn4-mnist", "1.png", "--top", "2.5")
    assert code != 0
    assert "--top: it takes a whole number; got '2.5'" in err


def test_impossible_networks_are_refused_before_the_data_are_loaded(monkeypatch, capsys):
    monkeypatch.delenv("TORCHSCN_DATA", raising=False)
    for setting, value in (("--model", "scn3"), ("--solver", "fist")):
        code, _, err = call(capsys, "train", "mnist-scn4", setting, value)
        assert code == 1
        assert err.startswith(f"scn: {setting} '{value}' is not known")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--shift", "9"], "--shift 9 is larger than the images, which have 8 x 8 pixels."),
        (["--cutout", "9"], "--cutout 9 is larger than the images, which have 8 x 8 pixels."),
        (["--downsample", "1,2,3,4"], "images of 8 x 8 pixels are too small"),
        (["--batch-size", "2000"], "--batch-size 2000 is more than the 1437 images"),
        (["--device", "cpu", "--amp", "true"], "--amp true needs a CUDA device, but the run is on cpu"),
    ],
)
def test_settings_that_do_not_fit_the_images_are_refused_before_the_first_step(
    tmp_path, monkeypatch, capsys, settings, message
):
    monkeypatch.setattr("torchscn.training.loop.train_step", lambda *arguments: pytest.fail("a step was taken"))
    code, _, err = call(capsys, "train", "digits", "--run-dir", str(tmp_path), "--stem", "4", *settings)
    assert code == 1
    assert err.startswith(f"scn: {message}")
    assert len(err.splitlines()) == 1


def test_a_mistake_in_a_recipe_is_named_as_it_is_written_there(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text("epochs = 0\n")
    _, _, err = call(capsys, "train", str(tmp_path / "mine.toml"))
    assert "--epochs" not in err
    assert "epochs must be a whole number" in err


def test_without_a_data_folder_the_flag_is_named(monkeypatch, capsys):
    monkeypatch.delenv("TORCHSCN_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    assert "Pass --data-dir DIR, or set" in call(capsys, "eval", "scn4-mnist")[2]
    assert "Pass --data-dir DIR, or set" in call(capsys, "data", "get", "mnist")[2]
    assert "Pass --data-dir DIR, or set" in call(capsys, "data")[1]


def test_networks_of_the_package_are_loaded_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    PIL.Image.new("RGB", (32, 32), "grey").save("grey.png")
    code, out, _ = call(capsys, "predict", "scn1-cifar10", "grey.png", "--top", "1")
    assert code == 0
    assert "grey.png" in out


def test_data_shows_what_is_missing_and_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(capsys, "data", "--data-dir", str(tmp_path))
    assert code == 0
    assert "4 of 4 files are missing. Fetch it with: scn data get mnist" in out
    assert "comes with scikit-learn" in out


def test_info_describes_the_machine():
    out = run_scn("info", TORCHSCN_KERNEL="torch").stdout
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines() if line.strip()}
    described = {"torchscn", "commit", "torch", "python", "machine", "processor", "threads", "kernel"}
    offered = {"kernels available", "solvers", "models", "trained networks", "cuda device"}
    assert described | offered <= rows.keys()
    assert rows["kernel"].split() == ["kernel", "torch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "network"], "Did you mean 'networks'?"),
        (["bench", "solvers", "--draw", "somewhere"], "--draw needs the folder of the results: --output DIR."),
        (["train", "digit"], "Did you mean 'digits'?"),
        (["train", "digits", "--epoch", "3"], "there is no setting --epoch. Did you mean --epochs?"),
        (["train", "digits", "--batch-sise", "3"], "there is no setting --batch-sise. Did you mean --batch-size?"),
        (["train", "digits", "--epochs", "0"], "--epochs must be a whole number, at least 1; got 0."),
        (["train", "digits", "--max-iter", "few"], "--max-iter takes a whole number; got 'few'."),
        (["train", "digits", "--schedule", "cosin"], "--schedule 'cosin' is not known"),
        (["train", "digits", "--shortcuts", "pool"], "--shortcuts 'pool' is not known; choose from 'none', 'pooled'"),
        (["train", "digits", "--downsample", "99"], "--downsample must list modules from 1 to 7"),
        (["train", "digits", "--downsample", "4,4"], "--downsample must list modules from 1 to 7, each at most once"),
        (["eval", "scn4-mnist", "--max-iter", "0"], "--max-iter must be a whole number, at least 1; got 0."),
        (["eval", "scn4-mnist", "--data-dir", "nowhere"], "The data folder nowhere (--data-dir) does not exist"),
        (["predict", "scn4-mnist", "1.png", "--top", "0"], "--top must be a whole number, at least 1; got 0."),
        (["predict", "scn4-mnist", "1.png"], "1.png does not exist."),
        (["recipes", "nonsense"], "no recipe 'nonsense'."),
        (["eval", "nowhere"], "'nowhere'"),
        (["predict", "scn1-cifar10"], "name at least one image file or folder."),
        (["data", "get", "minst"], "Did you mean 'mnist'?"),
    ],
)
def test_mistakes_end_in_one_sentence(capsys, arguments, message):
    code, _, err = call(capsys, *arguments)
    assert code == 1
    assert err.startswith("scn: ")
    assert message in err
    assert "Traceback" not in err


def test_a_mistake_in_the_environment_ends_in_one_sentence():
    result = run_scn("info", TORCHSCN_KERNEL="nonsense")
    assert result.returncode == 1
    assert result.stderr.startswith("scn: TORCHSCN_KERNEL='nonsense' is not a kernel")


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError, OSError])
def test_errors_of_all_kinds_are_told(monkeypatch, capsys, error):
    def fail(name):
        raise error("what was wrong, and what to do.")

    monkeypatch.setattr(train, "load_recipe", fail)
    assert call(capsys, "recipes", "digits") == (1, "", "scn: what was wrong, and what to do.\n")


def test_an_interrupted_run_says_how_to_resume_it(monkeypatch, capsys):
    def stop(*arguments, **options):
        raise Interrupted("stopped in epoch 1; resume with --resume")

    monkeypatch.setattr("torchscn.training.load_trained", stop)
    assert call(capsys, "eval", "anything") == (130, "", "\nscn: stopped in epoch 1; resume with --resume\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_of_an_interrupted_run_names_the_signal(monkeypatch, capsys, number, code):
    def stop(*arguments, **options):
        raise Interrupted("stopped.", signal_number=number)

    monkeypatch.setattr("torchscn.training.load_trained", stop)
    assert call(capsys, "eval", "anything") == (code, "", "\nscn: stopped.\n")


def test_ctrl_c_in_a_command_is_one_line(monkeypatch, capsys):
    def stop(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "load_recipe", stop)
    assert call(capsys, "recipes", "digits") == (130, "", "scn: stopped.\n")


@pytest.mark.parametrize("module", ["cyclopts", "rich", "torch", "torchscn.data"])
def test_ctrl_c_during_imports_is_one_line(module):
    """The signal arrives while the module is looked for, by code that swallows exceptions, as torch and NumPy do."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the tests may run with it ignored
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                pass\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from torchscn.cli import main\n"
        "main(['predict', 'scn4-mnist', 'x.png'])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "scn: stopped.\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["train", "digits", "--amp"], ["train", "digits", "--amp", "true"]),
        (["train", "digits", "--amp", "--lr", "0.1"], ["train", "digits", "--amp", "true", "--lr", "0.1"]),
        (["train", "digits", "--decay-lam1", "false"], ["train", "digits", "--decay-lam1", "false"]),
        (["train", "--resume", "--lr"], ["train", "--resume", "--lr"]),
        (["info", "--amp"], ["info", "--amp"]),
        ([], []),
    ],
)
def test_switches_need_no_value(typed, meant):
    assert spell_out_switches(typed) == meant
