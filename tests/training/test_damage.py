"""Files that are not what they should be: damage is noticed, never learnt from, and reported in one sentence."""

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from runs import QUICK, digits
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torchscn.training import CheckpointError, ConfigError, fit, load_trained, train
from torchscn.training.checkpoint import CURRENT, PREVIOUS, Checkpoint, load_checkpoint, save_checkpoint
from torchscn.weights import TrainedWeights, read_groups, read_weights, write_groups, write_weights

N_MUTATIONS = 1000
SMALL = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros((), dtype=torch.int64), "c": torch.ones(2)}
STATISTICS = {"mean": torch.zeros(1, 1, 1), "std": torch.ones(1, 1, 1)}
ABOUT = {"classes": ["cat", "dog"], "image_size": [8, 8]}


def position(**changes: object) -> dict[str, object]:
    return {"epoch": 1, "batch": 0, "loss_sum": 0.0, "n_wrong": 0, "n_seen": 0, "seconds": 0.0} | changes


def small_checkpoint(epoch: int) -> Checkpoint:
    tensors = {"model": SMALL, "optimizer": {"0.momentum_buffer": torch.full((2, 3), float(epoch))}}
    return Checkpoint(tensors, {"position": position(epoch=epoch), "about": ABOUT})


def mutate(content: bytes, dice: random.Random) -> bytes:
    """Content damaged in one of the ways in which disks and networks damage it."""
    kind, at = dice.randrange(5), dice.randrange(len(content))
    end = min(len(content), at + dice.choice((1, 4, 16, 64, 512)))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes(end - at) + content[end:]
    if kind == 2:
        return content[:end] + content[at:]  # a range twice
    if kind == 3:
        other = dice.randrange(len(content) - (end - at) + 1)
        return content[:other] + content[at:end] + content[other + end - at :]  # a range over another
    return flip(content, 8 * at + dice.randrange(8))


def flip(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def raw(value: Tensor) -> bytes:
    return value.reshape(-1).view(torch.uint8).numpy().tobytes()


def same(ours: dict[str, dict[str, Tensor]], theirs: dict[str, dict[str, Tensor]]) -> bool:
    """Whether two groups of tensors are equal to the last bit."""
    flat = [
        {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}
        for groups in (ours, theirs)
    ]
    return flat[0].keys() == flat[1].keys() and all(
        value.dtype == flat[1][name].dtype and value.shape == flat[1][name].shape and raw(value) == raw(flat[1][name])
        for name, value in flat[0].items()
    )


def test_a_damaged_checkpoint_is_never_used(tmp_path):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, small_checkpoint(epoch))
    content, dice = (tmp_path / CURRENT).read_bytes(), random.Random(0)
    expected = {None: small_checkpoint(2), "fallback": small_checkpoint(1)}
    outcomes = {None: 0, "fallback": 0}
    for _ in range(N_MUTATIONS):
        (tmp_path / CURRENT).write_bytes(mutate(content, dice))
        found, problem = load_checkpoint(tmp_path)
        outcome = "fallback" if problem else None
        outcomes[outcome] += 1
        assert same(found.tensors, expected[outcome].tensors)
        assert found.numbers == expected[outcome].numbers
    assert outcomes["fallback"] > 0.9 * N_MUTATIONS


def read_or_refuse(path: Path) -> TrainedWeights | str:
    """The content of a file, or the sentence that refuses it."""
    try:
        return read_weights(path)
    except CheckpointError as error:
        return str(error)


def test_a_damaged_model_is_never_used(tmp_path):
    path, dice = tmp_path / "model.safetensors", random.Random(1)
    write_weights(path, TrainedWeights(SMALL, STATISTICS, ABOUT))
    content, n_refused = path.read_bytes(), 0
    for _ in range(N_MUTATIONS):
        path.write_bytes(mutate(content, dice))
        found = read_or_refuse(path)
        if isinstance(found, str):
            assert str(path) in found
            n_refused += 1
        else:
            assert same({"model": found.model}, {"model": SMALL})
            assert found.about == ABOUT
    assert n_refused > 0.9 * N_MUTATIONS


def test_no_flipped_bit_passes(tmp_path):
    path = tmp_path / "file"
    write_groups(path, {"m": {"a": torch.ones(2)}}, {"about": "{}"})
    content = path.read_bytes()
    passed = []
    for bit in range(8 * len(content)):
        path.write_bytes(flip(content, bit))
        with suppress(CheckpointError):
            passed.append(read_groups(path))
    assert passed == []


def test_what_was_read_does_not_depend_on_the_file_any_more(tmp_path):
    """Views of the file changed with it, and ended the process when it became shorter."""
    path = tmp_path / "file"
    write_groups(path, {"model": SMALL}, {"about": "{}"})
    groups, _ = read_groups(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert same(groups, {"model": SMALL})
    path.write_bytes(b"")
    assert same(groups, {"model": SMALL})


def test_equal_content_gives_equal_files(tmp_path):
    for number in range(10):
        write_groups(tmp_path / f"{number}", {"model": SMALL}, {"about": "x", "more": "y"})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    groups, texts = read_groups(tmp_path / "0")
    assert same(groups, {"model": SMALL})
    assert texts == {"about": "x", "more": "y"}


def test_kinds_of_numbers_survive(tmp_path):
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.uint8, torch.int32, torch.complex64)
    tensors = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds} | {"empty": torch.zeros(0, 3)}
    write_groups(tmp_path / "file", {"all": tensors}, {"about": ""})
    found = read_groups(tmp_path / "file")[0]["all"]
    assert same({"all": found}, {"all": tensors})


def test_files_of_version_0_1_are_read(tmp_path):
    tensors = {f"model/{name}": value for name, value in SMALL.items()}
    tensors |= {f"normalization/{name}": value for name, value in STATISTICS.items()}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, {"about": json.dumps(ABOUT)})
    assert same({"model": read_weights(path).model}, {"model": SMALL})
    for texts in ({"about": json.dumps(ABOUT), "sha257": "0"}, {"aboud": json.dumps(ABOUT)}):
        save_file(tensors, path, texts)
        with pytest.raises(CheckpointError, match="no checksum"):
            read_weights(path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"__metadata__":3}',
        b'{"__metadata__":{"about":3}}',
        b'{"__metadata__":{"about":"{}"},"model/a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"about":"{}"},"model/a":{"dtype":"F32","shape":[1e99],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"about":"{}"},"model/a":{"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"about":"{}"},"model/a":{"dtype":"F32","shape":[0],"data_offsets":[9,3]}}',
        b'{"__metadata__":{"about":"{}"},"model/a":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"about":"{}"},"model/a":{"dtype":"X9","shape":[0],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"about":"{}"},"model":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"about":"' + b"[" * 100_000 + b'"}}',
        b'{"__metadata__":{"about":"' + b"9" * 100_000 + b'"}}',
        b'{"__metadata__":{"about":"\\ud800"}}',
    ],
)
@pytest.mark.parametrize("length", [None, 0, 2**63, 2**64 - 1])
def test_absurd_headers_are_one_sentence(tmp_path, header, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError) as caught:
        read_weights(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "finished"
    train(QUICK.override({"model": "cnn1"}), folder, quiet=True)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def resume(folder: Path) -> None:
    train(QUICK.override({"model": "cnn1"}), folder, resume=True)


def unfinish(folder: Path) -> None:
    """Go back to the beginning of the last epoch."""
    (folder / "model.safetensors").unlink()
    (folder / CURRENT).unlink()


def spoil(path: Path, value: float, group: str = "model") -> None:
    """Put a number into the weights of a file, which then matches its checksum."""
    groups, texts = read_groups(path)
    name = next(name for name, tensor in groups[group].items() if tensor.is_floating_point())
    groups[group][name] = torch.full_like(groups[group][name], value)
    write_groups(path, groups, texts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_not_loaded(run, value):
    spoil(run / "model.safetensors", value)
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*not finite"):
        load_trained(run)


@pytest.mark.parametrize("group", ["model", "ema", "optimizer"])
def test_resume_falls_back_from_weights_that_are_not_finite(run, capsys, group):
    before = load_file(run / "model.safetensors")
    spoil(run / CURRENT, float("nan"), group)
    (run / "model.safetensors").unlink()
    resume(run)
    printed = capsys.readouterr().out
    assert "not finite" in printed
    assert "Falling back to the previous checkpoint" in printed
    assert all(torch.equal(value, before[name]) for name, value in load_file(run / "model.safetensors").items())


def test_two_checkpoints_that_are_not_finite(run):
    for name in (CURRENT, PREVIOUS):
        spoil(run / name, float("nan"))
    (run / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=rf"{CURRENT}.*not finite.*{PREVIOUS}.*not finite"):
        resume(run)
    with pytest.raises(CheckpointError, match="not finite"):
        load_trained(run)


class Masked(nn.Module):
    """A user's network with a buffer that is infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("mask", torch.tensor([0.0] * 9 + [-float("inf")]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)) + self.mask.clamp_min(-9)


def test_a_mask_may_be_infinite(tmp_path):
    config = QUICK.override({"ema": 0.0})
    fit(Masked(), *digits(), config, tmp_path, quiet=True)
    assert len(fit(Masked(), *digits(), config, tmp_path, resume=True, quiet=True).metrics) == 2


LINE = '{"epoch": 1, "train_error": 50.0, "test_error": 50.0}\n'


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\xff\xfe\0",
        b"[]",
        b"3\n",
        b"null\n",
        b'"epoch"\n',
        b"{}\n",
        b"[" * 100_000,
        LINE.encode()[:20],
        LINE.replace("1", '"one"', 1).encode(),
        LINE.replace("1", "true", 1).encode(),
        LINE.replace("1", "-1", 1).encode(),
        LINE.replace("50.0", "null").encode(),
        LINE.replace("50.0", "NaN").encode(),
        LINE.replace("50.0", "1e999").encode(),
        LINE.replace("50.0", "[]").encode(),
        (LINE + LINE).encode(),
        (LINE + "{").encode(),
    ],
)
def test_damaged_metrics_do_not_stop_a_run(run, capsys, content):
    unfinish(run)
    path = run / "metrics.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    (run / "metrics.jsonl.damaged").write_text("older")
    resume(run)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert json.loads(path.read_text().splitlines()[-1])["epoch"] == 2
    assert (run / "metrics.jsonl.damaged").read_text() == "older"
    if content is not None:
        assert (run / "metrics.jsonl.damaged.2").read_bytes() == content


def test_good_lines_of_damaged_metrics_are_kept(run):
    path = run / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second[:-5]}")
    resume(run)
    assert path.read_text() == f"{first}\n"
    assert (run / "metrics.jsonl.damaged").read_text() == f"{first}\n{second[:-5]}"


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff", b"[]", b"3", b"null", b"{", b"[" * 100_000, b'{"resumed": 3}', b'{"resumed": [3]}']
)
def test_a_damaged_environment_does_not_stop_a_run(run, capsys, content):
    unfinish(run)
    path = run / "environment.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    resume(run)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert [entry["after_epochs"] for entry in json.loads(path.read_text())["resumed"]] == [1]
    assert (run / "environment.json.damaged").exists() == (content is not None)


def test_a_record_that_is_a_folder(run, capsys):
    unfinish(run)
    for name in ("environment.json", "metrics.jsonl"):
        (run / name).unlink()
        (run / name).mkdir()
    resume(run)
    assert capsys.readouterr().out.count("warning") == 2
    assert (run / "metrics.jsonl").is_file()


CONFIGS = [
    "",
    "{",
    "[]",
    "[1]",
    "3",
    '"lr"',
    "null",
    "true",
    "[" * 100_000,
    '{"lr": ' + "9" * 5000 + "}",
    '{"lr": ' + "9" * 400 + "}",
    '{"lr": 1e999}',
    '{"lr": NaN}',
    '{"lr": {"value": 3}}',
    '{"lr": [0.1]}',
    '{"lr": true}',
    '{"epochs": ' + "9" * 400 + "}",
    '{"epochs": 2.0}',
    '{"epochs": true}',
    '{"epochs": {}}',
    '{"epochs": 0}',
    '{"milestones": {"1": 2}}',
    '{"milestones": 3}',
    '{"milestones": [[1]]}',
    '{"milestones": [null]}',
    '{"model": 3}',
    '{"model": "scn99"}',
    '{"model": ["scn1"]}',
    '{"model": ""}',
    '{"flip": 1}',
    '{"flip": []}',
    '{"preset": "nobody"}',
    '{"preset": {}}',
    '{"options": {"tol": 3}}',
    '{"": 3}',
    '{"epocs": 3}',
    '{"stem": 1000000000000}',
    '{"stem": 99999999999999999999999}',
    '{"stem": -1}',
    '{"stem": [4]}',
    '{"solver": "magic"}',
    '{"downsample": "many"}',
    '{"data": 3}',
]


@pytest.mark.parametrize("text", CONFIGS)
def test_settings_of_the_wrong_shape(run, text):
    (run / "config.json").write_text(text)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        load_trained(run)
    message = str(caught.value)
    # Settings that fit no network are noticed where they meet the weights.
    assert str(run / "config.json") in message or str(run / "model.safetensors") in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("change", "named"), [({"tol": 0.3}, "tol"), ({"order": "expand_reduce"}, "order"), ({"model": "scn1"}, "model")]
)
def test_settings_of_another_network_are_noticed(run, change, named):
    """They may fit the weights all the same, and gave other answers."""
    (run / "config.json").write_text(QUICK.override({"model": "cnn1"} | change).to_json())
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"config\.json describes another network.*\({named} differ\)"):
            load_trained(run)
        (run / "model.safetensors").unlink(missing_ok=True)  # then the checkpoint is read


def test_settings_that_do_not_describe_the_network_may_change(run):
    (run / "config.json").write_text(QUICK.override({"model": "cnn1", "data": "folder:elsewhere"}).to_json())
    assert load_trained(run).config.data == "folder:elsewhere"


def test_weights_that_do_not_say_which_network_they_are_from(run):
    """Those of version 0.1."""
    groups, _ = read_groups(run / "model.safetensors")
    about = json.dumps({"classes": list("0123456789"), "image_size": [8, 8]})
    write_groups(run / "model.safetensors", groups, {"about": about})
    assert load_trained(run).model.num_classes == 10


DESCRIPTIONS = [
    "",
    "[]",
    "3",
    "null",
    "{}",
    '{"classes": ["a"]}',
    json.dumps({"classes": list("0123456789")}),
    json.dumps({"classes": list("0123456789"), "image_size": 8}),
    json.dumps({"classes": list("0123456789"), "image_size": [8]}),
    json.dumps({"classes": list("0123456789"), "image_size": [8, 8, 8]}),
    json.dumps({"classes": list("0123456789"), "image_size": [8, 0]}),
    json.dumps({"classes": list("0123456789"), "image_size": [8, 4097]}),
    json.dumps({"classes": list("0123456789"), "image_size": [8.0, 8.0]}),
    json.dumps({"classes": list("0123456789"), "image_size": [True, True]}),
    json.dumps({"classes": list("0123456789"), "image_size": "88"}),
    json.dumps({"classes": list("0123456789"), "image_size": {"8": 8, "9": 8}}),
    json.dumps({"classes": list("012345678"), "image_size": [8, 8]}),
    json.dumps({"classes": list("0123456789a"), "image_size": [8, 8]}),
    json.dumps({"classes": list(range(10)), "image_size": [8, 8]}),
    json.dumps({"classes": "0123456789", "image_size": [8, 8]}),
    json.dumps({"classes": dict.fromkeys("0123456789"), "image_size": [8, 8]}),
    json.dumps({"classes": 10, "image_size": [8, 8]}),
    json.dumps({"classes": [], "image_size": [8, 8]}),
    json.dumps({"classes": [["0"]] * 10, "image_size": [8, 8]}),
]


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_descriptions_of_the_wrong_shape(run, text):
    path = run / "model.safetensors"
    groups, _ = read_groups(path)
    write_groups(path, groups, {"about": text})
    with pytest.raises(CheckpointError) as caught:
        load_trained(run)
    assert str(path) in str(caught.value)


def test_descriptions_that_contradict_the_tensors(tmp_path):
    path, statistics = tmp_path / "model.safetensors", STATISTICS | {"mean": torch.zeros(1, 9, 9)}
    write_weights(path, TrainedWeights({"classifier.bias": torch.ones(3)}, STATISTICS, ABOUT))
    with pytest.raises(CheckpointError, match=r"names 2 classes, but its scores have shape \(3,\)"):
        read_weights(path)
    write_weights(path, TrainedWeights(SMALL, statistics, ABOUT))
    with pytest.raises(CheckpointError, match=r"images are \[8, 8\], but their mean is \[9, 9\]"):
        read_weights(path)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("shape", [None, (), (3, 1, 1), (1, 2, 1), (0, 1, 1)])
def test_statistics_of_the_wrong_shape(run, name, shape):
    path = run / "model.safetensors"
    groups, texts = read_groups(path)
    del groups["normalization"][name]
    if shape is not None:
        groups["normalization"][name] = torch.ones(shape)
    write_groups(path, groups, texts)
    with pytest.raises(CheckpointError) as caught:
        load_trained(run)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("mean", torch.ones(1, 1, 1).long()), ("std", torch.zeros(1, 1, 1))])
def test_statistics_of_the_wrong_kind(run, name, value):
    path = run / "model.safetensors"
    groups, texts = read_groups(path)
    groups["normalization"][name] = value
    write_groups(path, groups, texts)
    with pytest.raises(CheckpointError, match="above 0") as caught:
        load_trained(run)
    assert str(path) in str(caught.value)


POSITIONS = [
    "",
    "[]",
    "3",
    "{}",
    '{"position": null}',
    '{"position": 3}',
    '{"position": []}',
    '{"position": {}}',
    json.dumps({"position": position(epoch="1")}),
    json.dumps({"position": position(epoch=-1)}),
    json.dumps({"position": position(epoch=1.0)}),
    json.dumps({"position": position(epoch=True)}),
    json.dumps({"position": position(epoch=10**400)}),
    json.dumps({"position": position(epoch=None)}),
    json.dumps({"position": position(batch=[0])}),
    json.dumps({"position": position(batch=3)}),
    json.dumps({"position": position(batch=10**6, n_seen=1)}),
    json.dumps({"position": position(n_seen="many")}),
    json.dumps({"position": position(loss_sum=float("nan"))}),
    json.dumps({"position": position(seconds=float("inf"))}),
    json.dumps({"position": position(seconds="1")}),
    json.dumps({"position": position(more=3)}),
]


@pytest.mark.parametrize("text", POSITIONS)
def test_positions_of_the_wrong_shape(run, text):
    unfinish(run)
    path = run / PREVIOUS
    groups, _ = read_groups(path)
    write_groups(path, groups, {"numbers": text})
    with pytest.raises(CheckpointError) as caught:
        resume(run)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("optimizer", "x.momentum_buffer", torch.ones(1)),
        ("optimizer", "999.momentum_buffer", torch.ones(1)),
        ("optimizer", "-1.momentum_buffer", torch.ones(1)),
        ("optimizer", "9" * 5000 + ".momentum_buffer", torch.ones(1)),
        ("optimizer", "0.momentum_buffer", torch.ones(7, 7)),
        ("optimizer", "0.momentum_buffer", torch.ones(())),
        ("optimizer", "0.momentum_buffer", torch.ones(4, 1, 3, 3, dtype=torch.int64)),
        ("ema", "classifier.bias", torch.ones(3)),
        ("ema", "unknown", torch.ones(3)),
        ("model", "classifier.bias", torch.ones(10, dtype=torch.int64)),
        ("model", "unknown", torch.ones(3)),
    ],
)
def test_tensors_that_belong_elsewhere(run, group, name, value):
    unfinish(run)
    path = run / PREVIOUS
    groups, texts = read_groups(path)
    groups[group][name] = value
    write_groups(path, groups, texts)
    with pytest.raises(CheckpointError, match="another network") as caught:
        resume(run)
    assert str(path) in str(caught.value)


def test_a_checkpoint_without_averaged_weights(run):
    unfinish(run)
    groups, texts = read_groups(run / PREVIOUS)
    del groups["ema"]
    write_groups(run / PREVIOUS, groups, texts)
    with pytest.raises(CheckpointError, match="another network"):
        resume(run)


def test_model_and_checkpoint_in_each_others_place(run):
    shutil.copy(run / CURRENT, run / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is another kind of file"):
        load_trained(run)
