"""The report: one well-formed file that needs nothing else, from the command line and from the library."""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import PIL.Image
import pytest
import torch

import torchscn
from torchscn import LayerOptions, Network, Row, data
from torchscn.cli import main
from torchscn.inspect import About, inspect_network, slim_and_wide, write_report
from torchscn.inspect.figures import draw_example
from torchscn.inspect.stages import dissect
from torchscn.inspect.tiles import as_picture, atom_picture, blank, enlarge, grid
from torchscn.training import TrainConfig, train

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Outline(HTMLParser):
    """Checks that tags are closed in order, and collects ids, links, images and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, text):
        self.text += f"{text} "

    def values(self, tag: str, name: str) -> list[str]:
        return [attributes[name] or "" for found, attributes in self.found if found == tag and name in attributes]


def read(path: Path) -> Outline:
    """A report, checked to be well-formed and to load nothing from elsewhere."""
    html = path.read_text()
    outline = Outline()
    outline.feed(html)
    outline.close()
    assert not outline.problems
    assert not outline.open
    ids = outline.values("h2", "id")
    assert len(set(ids)) == len(ids)
    assert {link.removeprefix("#") for link in outline.values("a", "href")} == set(ids)
    assert all(source.startswith("data:image/png;base64,") for source in outline.values("img", "src"))
    assert all(outline.values("img", "alt"))
    assert "script" not in {tag for tag, _ in outline.found}
    for address in ("http:", "https:", "url(", "@import", 'src="/'):
        assert address not in html
    return outline


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def small(kind: str, images: data.ImageSet) -> Network:
    """A network of three layers that answers at random."""
    torch.manual_seed(0)
    network = Network([Row(kind, 6), Row(kind, 8, 2), Row(kind, 6)], 10, in_channels=1).eval()
    network.remember(data.Normalization.fit(images.images), images.classes, (8, 8))
    return network


@pytest.fixture(scope="module")
def findings(images):
    return inspect_network(small("sparse", images), images, twin=small("conv", images), n_images=60)


def test_the_command_writes_a_report(capsys, digits_run):
    code, out, _ = call(capsys, "inspect", str(digits_run), "--images", "60")
    folder = digits_run / "inspect"
    assert code == 0
    assert "report.html" in out
    outline = read(folder / "report.html")
    assert "digits-<b>&" in outline.text  # a name is text, never markup
    for part in ("At a glance", "Atoms", "Clusters", "Separation", "Health", "Mistakes", "What is left of the image"):
        assert part in outline.text
    pictures = {path.stem for path in folder.glob("*.png")}
    assert {"network", "curve", "rebuilt", "example-1", "clusters", "confusion", "atoms-01", "atoms-14"} <= pictures
    assert len(outline.values("img", "src")) == len(pictures)
    for path in folder.glob("*.png"):
        with PIL.Image.open(path) as picture:
            assert len(picture.convert("L").getcolors(256)) > 2, f"{path.name} is blank"
    numbers = json.loads((folder / "findings.json").read_text())
    assert numbers["n_images"] == 360
    assert f"error {numbers['test_error']:.2f} %" in outline.text


def test_a_twin_is_shown_beside(findings, tmp_path):
    outline = read(write_report(findings, About("some", twin="the-twin"), tmp_path / "new" / "folder"))
    assert "The twin is the-twin." in outline.text
    assert "The twin ends at" in outline.text
    assert len(findings.numbers()["twin_probes"]) == 4


def test_what_places_add_is_drawn_over_the_whole_image(findings):
    _, places, *_ = draw_example(findings.network, findings.with_images.examples[0]).axes
    image, drawn = (shown.get_extent() for shown in places.images)
    step = findings.with_images.examples[0].looks[-1].stage.field.step
    assert places.images[1].get_array().shape[1] * step == drawn[1] - drawn[0]  # places stay where they are
    assert drawn[0] <= image[0] < image[1] <= drawn[1]
    assert drawn[3] <= image[3] < image[2] <= drawn[2]


def test_numbers_are_json(findings):
    numbers = json.loads(json.dumps(findings.numbers()))
    assert len(numbers["layers"]) == len(numbers["clusters"]) == 3
    assert numbers["layers"][0]["receptive_field"] == 3
    assert torch.tensor(numbers["confusion"]).sum() == numbers["n_images"]


def test_without_images_the_weights_are_shown(images, tmp_path):
    findings = inspect_network(small("sparse", images))
    outline = read(write_report(findings, About("some", no_images="They are on the moon."), tmp_path))
    assert "They are on the moon." in outline.text
    assert "Clusters" not in outline.text
    assert (tmp_path / "atoms-03.png").exists()


def test_a_missing_data_set_is_said_and_left_out(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHSCN_DATA", raising=False)
    code, _, err = call(capsys, "inspect", "scn1-cifar10", "--output", str(tmp_path))
    assert code == 0
    assert "only the weights are looked at" in err
    assert "--data-dir" in err
    assert "Only the weights are looked at here." in read(tmp_path / "report.html").text


def test_convolutions_are_inspected_too(images, tmp_path):
    findings = inspect_network(small("conv", images), images)
    outline = read(write_report(findings, About("twin"), tmp_path))
    assert "cannot rebuild its input" in outline.text
    assert "nothing can be synthesised" in outline.text


def test_parts_that_need_scikit_learn_are_left_out_without_it(images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    findings = inspect_network(small("sparse", images), images.take(range(20)))
    assert set(findings.left_out) == {"clusters", "separation"}
    assert "pip install torchscn[inspect]" in read(write_report(findings, About("some"), tmp_path)).text


def test_few_images_and_no_mistakes(images, tmp_path):
    """Two images, both answered right: no probe, no confident error."""
    network = small("sparse", images)
    right = (network(network.preprocess(images.images)).argmax(1) == images.labels).nonzero().flatten()
    findings = inspect_network(network, images.take(right[:2]))
    assert "separation" in findings.left_out
    assert "There are no mistakes." in read(write_report(findings, About("some"), tmp_path)).text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "neither a run folder nor a network"),
        (["scn4-mnist", "--images", "0"], "--images must be a whole number, at least 1"),
        (["scn4-mnist", "--twin", "cnn9"], "neither a run folder nor a network"),
    ],
)
def test_bad_input_is_one_sentence(capsys, arguments, sentence):
    code, _, err = call(capsys, "inspect", *arguments)
    assert code == 1
    assert sentence in err
    assert err.count("\n") == 1


def test_a_run_without_weights(capsys, tmp_path):
    code, _, err = call(capsys, "inspect", str(tmp_path))
    assert code == 1
    assert "is not a run folder" in err


def test_without_matplotlib_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = call(capsys, "inspect", "scn4-mnist")
    assert code == 1
    assert "pip install torchscn[inspect]" in err


def test_a_twin_that_knows_other_classes(capsys, digits_run, tmp_path):
    code, _, err = call(capsys, "inspect", str(digits_run), "--twin", "scn4-mnist", "--output", str(tmp_path))
    assert code == 1
    assert "the twin does not go with these images: the network looks at images of 1 x 28 x 28" in err


def test_shortcuts_are_refused_before_anything_is_done(capsys, digits_run, tmp_path):
    config = TrainConfig(epochs=1, limit=128, options={"stem": 4, "shortcuts": "pooled"})
    train(config, tmp_path, quiet=True)
    refused = "a network with shortcuts is not looked into"
    code, _, err = call(capsys, "inspect", str(tmp_path))
    assert (code, err.splitlines()) == (1, [f"scn: {refused}: only layers that follow one another are."])
    assert not (tmp_path / "inspect").exists()
    code, _, err = call(capsys, "inspect", str(digits_run), "--twin", str(tmp_path))
    assert code == 1
    assert err.startswith(f"scn: the twin cannot be inspected: {refused}")


def test_slim_layers_are_narrower_than_their_neighbours():
    stages = dissect(torchscn.create_model("scn2", order="expand_reduce")).stages
    slim, wide = slim_and_wide(stages)
    assert all(number % 2 == 0 for number in slim)
    assert not set(slim) & set(wide)


def test_tiles():
    assert (atom_picture(torch.zeros(3, 2, 2)) == 128).all()
    assert atom_picture(torch.tensor([[[1.0, -1.0]]]))[0].tolist() == [[255] * 3, [0] * 3]
    assert as_picture(torch.rand(5, 4, 6)).shape == (4, 6, 3)
    blocks = enlarge(as_picture(torch.tensor([[[0.0, 1.0]]]).expand(1, 2, 2)), 4)
    assert blocks[0, :, 0].tolist() == [0, 0, 255, 255]
    assert enlarge(as_picture(torch.rand(1, 9, 9)), 4).shape == (4, 4, 3)
    sheet = grid([blank(2, 0)] * 3, 2)
    assert sheet.shape == (5, 5, 3)
    assert sheet[3:, 3:].min() == 255  # the hole in the last row
    marked = enlarge(blank(4, 0), 4, box=(-5, 1, 3, 9))
    assert (marked[..., 0] > 0).astype(int).tolist() == [[0, 1, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    wide = enlarge(blank(4, 0)[:2], 8)  # keeps its shape, in the middle of the tile
    assert wide[:, 0, 0].tolist() == [255] * 2 + [0] * 4 + [255] * 2


def network_of(rows: list[Row], images: data.ImageSet, **options) -> Network:
    torch.manual_seed(0)
    network = Network(rows, len(images.classes), images.images.shape[1], LayerOptions(**options)).eval()
    network.remember(data.Normalization.fit(images.images), images.classes, tuple(images.images.shape[2:]))
    return network


def report_on(network: Network, images: data.ImageSet | None, folder: Path) -> tuple[Outline, dict]:
    """A report and its numbers, which are strict JSON."""
    outline = read(write_report(inspect_network(network, images), About("some"), str(folder)))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return outline, json.loads((folder / "findings.json").read_text(), parse_constant=refuse)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([Row("sparse", 5)], {}),
        ([Row("sparse", 16), Row("sparse", 8, 2)], {"lam2": 0.0}),  # singular: more atoms than features
        ([Row("sparse", 5), Row("sparse", 6)], {"affine": True}),
        ([Row("sparse", 5), Row("sparse", 6)], {"norm": "after", "per_atom": True, "unit_norm": True}),
        ([Row("sparse", 5), Row("sparse", 6)], {"constraint": "signed"}),
        ([Row("sparse", 5), Row("sparse", 6)], {"constraint": "sum_to_one"}),
        ([Row("sparse", 5), Row("sparse", 6)], {"lam1": 50.0}),  # no code is ever active
        ([Row("conv", 5), Row("sparse", 6), Row("conv", 7, 2)], {}),
    ],
)
def test_networks_of_all_kinds_are_reported(rows, options, images, tmp_path):
    outline, numbers = report_on(network_of(rows, images, **options), images.take(range(40)), tmp_path)
    assert len(numbers["layers"]) == len(rows)
    assert not {"nan", "inf", "-nan"} & set(outline.text.lower().replace("%", " ").split())


def test_double_precision_and_networks_in_training(images, tmp_path):
    network = network_of([Row("sparse", 5), Row("sparse", 6)], images).double()
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    _, numbers = report_on(network, images, tmp_path)
    assert network.training
    torch.testing.assert_close(dict(network.state_dict()), before)
    network.eval()
    right = (network(network.preprocess(images.images)).argmax(1) == images.labels).double().mean()
    assert numbers["test_error"] == pytest.approx(100 * (1 - float(right)))


def test_a_diverged_network_is_a_concern(images, tmp_path):
    network = network_of([Row("sparse", 5), Row("sparse", 6)], images)
    with torch.no_grad():
        network.sparse_layers()[1][1].dictionary[2] = torch.nan
    outline, _ = report_on(network, None, tmp_path)
    assert "its weights are not finite" in outline.text


@pytest.mark.parametrize("n_images", [1, 2, 9])
def test_few_images(images, n_images, tmp_path):
    outline, _ = report_on(small("sparse", images), images.take(range(n_images)), tmp_path)
    assert "too few positions with active atoms" in outline.text


def test_odd_class_names_and_shapes(tmp_path):
    names = ("US$ 5_{$", "<b>&amp;", "猫" * 30)
    pixels = torch.randint(256, (12, 3, 6, 10), dtype=torch.uint8)
    images = data.ImageSet("odd", pixels, torch.arange(3).repeat(4), names)
    outline, _ = report_on(network_of([Row("sparse", 5), Row("sparse", 6, 2)], images), images, tmp_path)
    assert "Mistakes" in outline.text


def test_certificates_have_the_number_of_their_layer(images, tmp_path):
    network = network_of([Row("conv", 5), Row("sparse", 6)], images)
    outline, _ = report_on(network, images, tmp_path)
    assert [stage.number for stage in dissect(network).stages if stage.is_sparse] == [2]
    assert "active % lam1 2 " in " ".join(outline.text.split())  # the first row below the head of the table


def test_held_out_images_are_called_that(capsys, tmp_path):
    run = tmp_path / "run"
    settings = ["--epochs", "1", "--limit", "100", "--validation", "60", "--stem", "4", "--quiet"]
    assert call(capsys, "train", "digits", "--run-dir", str(run), *settings)[0] == 0
    assert call(capsys, "inspect", str(run))[0] == 0
    assert "(60 held-out training images)" in read(run / "inspect" / "report.html").text


def test_output_that_is_a_file(capsys, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    code, _, err = call(capsys, "inspect", "scn4-mnist", "--output", str(path))
    assert code == 1
    assert "--output must be a folder" in err
