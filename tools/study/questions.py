"""What is compared: named variants of one training run, and questions about pairs of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchscn.network import Network, Row
from torchscn.options import NetworkOptions

__all__ = ["STUDIES", "Question", "Study", "Variant", "constant_width"]


@dataclass(frozen=True)
class Variant:
    """A training run in all its seeds.

    Args:
        label: what it is, for people.
        settings: those that differ from the study's common ones.
        seeds: how many, counted from 0; 0: as many as the study has.
        beside: name of the variant that lacks what is new in this one.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 0
    beside: str = ""


@dataclass(frozen=True)
class Question:
    """Something that is said, and the pairs of variants that show whether it is true.

    Args:
        claim: one sentence.
        source: who says so: the paper's text, its authors' program, or we ask.
        pairs: names of variants; the claim says that the first has the smaller error.
    """

    claim: str
    source: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Study:
    """Variants that share their settings, and what is asked about them.

    Args:
        recipe: where the settings begin.
        common: settings that differ from the recipe, in all variants.
        seeds: how many runs each variant needs.
        variants: by name; they are trained in this order, all variants with one seed before the next seed.
        questions: in the order of the page.
    """

    recipe: str
    common: Mapping[str, Any]
    seeds: int
    variants: Mapping[str, Variant]
    questions: tuple[Question, ...]


def constant_width(num_classes: int, in_channels: int, options: NetworkOptions) -> Network:
    """As many layers as SCN-4, in every section of one width: twice the slim one, for as many parameters."""
    widths = [32] * 6 + [64] * 4 + [128] * 4
    strides = {6: 2, 10: 2}
    table = [Row("sparse", width, strides.get(number, 1)) for number, width in enumerate(widths)]
    return Network(table, num_classes, in_channels, options)


def _few_labels(count: int, epochs: int, batch_size: int) -> dict[str, Variant]:
    """SCN-1 and its twin, trained on a few images for about the same number of steps; the rate fits the batch."""
    settings = {"limit": count, "epochs": epochs, "batch_size": batch_size, "lr": 0.19 * batch_size / 128}
    settings["test_every"] = epochs  # a test takes longer than an epoch
    return {
        f"labels{count}-scn": Variant(f"SCN-1, {count:,} images", settings),
        f"labels{count}-cnn": Variant(f"CNN-1, {count:,} images", settings | {"model": "cnn1"}),
    }


_SHORT = {"model": "scn1", "validation": 5000, "epochs": 5, "lr": 0.19, "weight_decay": 1.3e-3, "warmup": 0.1}
_MUON = {"optimizer": "muon", "decay_lam1": False}
_MUON02 = _MUON | {"muon_lr": 0.02}
_CNN_MUON = {"model": "cnn1", "optimizer": "muon"}  # the twin has no lam1

CLAIMS = Study(
    recipe="cifar10-cnn1",
    common=_SHORT | {"limit": 20000},
    seeds=3,
    variants={
        "scn1": Variant("SCN-1"),
        "cnn1": Variant("CNN-1, its twin", {"model": "cnn1"}),
        "zero": Variant("SCN-1, no lam1", {"learn_lam1": False}),
        "fixed": Variant("SCN-1, lam1 = 0.1 in all layers", {"lam1": 0.1, "learn_lam1": False}),
        "learned": Variant("SCN-1, lam1 learned from 0.1", {"lam1": 0.1}),
        "atoms": Variant("SCN-1, lam1 learned per atom", {"per_atom": True}),
        "bound1": Variant("SCN-1, norms of atoms at most 1", {"max_norm": 1.0}),
        "bound4": Variant("SCN-1, norms of atoms at most 0.25", {"max_norm": 0.25}),
        "scn2": Variant("SCN-2", {"model": "scn2"}),
        "scn4": Variant("SCN-4", {"model": "scn4"}),
        "constant4": Variant("constant width, parameters of SCN-4", {"model": "constant4"}),
        "after": Variant("SCN-1, batch norm after each layer", {"norm": "after"}),
        "affine": Variant("SCN-1, scale and bias of batch norm learned", {"affine": True}),
        "reversed": Variant("SCN-2, wide layer first", {"model": "scn2", "order": "expand_reduce"}),
        **_few_labels(500, epochs=40, batch_size=32),
        **_few_labels(2000, epochs=25, batch_size=64),
        **_few_labels(5000, epochs=16, batch_size=128),
    },
    questions=(
        Question("Wider expansion layers (K) lower the error.", "text", (("scn2", "scn1"), ("scn4", "scn2"))),
        Question(
            "Learning lam1 in every layer lowers the error.",
            "text",
            (("scn1", "zero"), ("learned", "fixed"), ("scn1", "fixed")),
        ),
        Question("One lam1 for every atom is better than one for every layer.", "asked by us", (("atoms", "scn1"),)),
        Question(
            "Bottlenecks use parameters better than layers of constant width.",
            "text",
            (("scn4", "constant4"),),
        ),
        Question("A bound on the norms of atoms does harm.", "text", (("scn1", "bound1"), ("scn1", "bound4"))),
        Question("In a module, the slim layer comes first.", "program", (("scn2", "reversed"),)),
        Question("Batch norm belongs before the layer, not after it.", "program", (("scn1", "after"),)),
        Question("Batch norm needs no scale and bias.", "program", (("scn1", "affine"),)),
        Question("Sparse coding beats its convolutional twin.", "asked by us", (("scn1", "cnn1"),)),
        Question(
            "It does so with few labels.",
            "asked by us",
            tuple((f"labels{count}-scn", f"labels{count}-cnn") for count in (500, 2000, 5000)),
        ),
    ),
)


def _more(what: str, **settings: Any) -> Variant:
    """SCN-1 with Muon, and one thing more."""
    return Variant(f"Muon 0.02, {what}", _MUON02 | settings, beside="muon02")


RECIPE = Study(
    recipe="cifar10-cnn1",
    common=_SHORT,
    seeds=1,
    variants={
        "usual": Variant(
            "gradient descent, rate 0.1, weight decay 5e-4, a quarter of the run rising",
            {"lr": 0.1, "weight_decay": 5e-4, "warmup": 0.25},
            seeds=3,
        ),
        "base": Variant(
            "gradient descent, rate 0.19, weight decay 1.3e-3, a tenth of the run rising", seeds=3, beside="usual"
        ),
        "nodecay": Variant("... without weight decay on lam1", {"decay_lam1": False}, seeds=3, beside="base"),
        "muon01": Variant("Muon, rate 0.01", _MUON | {"muon_lr": 0.01}, beside="nodecay"),
        "muon02": Variant("Muon, rate 0.02", _MUON02, seeds=3, beside="nodecay"),
        "muon04": Variant("Muon, rate 0.04", _MUON | {"muon_lr": 0.04}, beside="nodecay"),
        "muon02-smooth": _more("label smoothing 0.1", label_smoothing=0.1),
        "muon02-pooled": _more("pooled shortcuts", shortcuts="pooled"),
        "muon02-projected": _more("projected shortcuts", shortcuts="projected"),
        "muon02-early": _more(
            "images of 24 x 24 pixels in the first three of five epochs", early_size=0.75, early_share=0.6
        ),
        "muon02-alternate": _more("alternating flips", alternate_flip=True),
        "muon02-cutout": _more("cutout of 8 pixels", cutout=8),
        "muon02-affine": _more("scale and bias of batch norm learned", affine=True),
        "muon02-atoms": _more("lam1 per atom", per_atom=True),
        "muon02-ridge01": _more("lam2 = 0.1", lam2=0.1),
        "muon02-ridge1": _more("lam2 = 1", lam2=1.0),
        "muon02-ema": _more("weights averaged (0.998)", ema=0.998),
        "muon02-tight": _more("tolerance 1e-3", tol=1e-3),
        "cnn-base": Variant("twin: gradient descent, rate 0.19", {"model": "cnn1"}, seeds=3),
        "cnn-muon01": Variant("twin: Muon, rate 0.01", _CNN_MUON | {"muon_lr": 0.01}, beside="cnn-base"),
        "cnn-muon02": Variant("twin: Muon, rate 0.02", _CNN_MUON | {"muon_lr": 0.02}, seeds=3, beside="cnn-base"),
        "cnn-muon04": Variant("twin: Muon, rate 0.04", _CNN_MUON | {"muon_lr": 0.04}, beside="cnn-base"),
        "cnn-muon02-pooled": Variant(
            "twin: Muon 0.02, pooled shortcuts",
            _CNN_MUON | {"muon_lr": 0.02, "shortcuts": "pooled"},
            beside="cnn-muon02",
        ),
    },
    questions=(),
)

STUDIES = {"claims": CLAIMS, "recipe": RECIPE}
