"""Weights on disk: safetensors files, written atomically, and the trained networks that come with the package."""

import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from torchscn.atomic import replace_file

__all__ = [
    "CheckpointError",
    "TrainedWeights",
    "check_finite",
    "check_match",
    "check_weights",
    "file_hash",
    "fill_model",
    "is_finite",
    "list_pretrained",
    "load_pretrained",
    "pretrained_folder",
    "read_groups",
    "read_table",
    "read_weights",
    "write_groups",
    "write_weights",
]

HASHES = "SHA256SUMS"
CHECKSUM = "sha256"  # the text in the header of a file that holds the checksum of the rest
LARGEST_SIDE = 4096  # of an image; a larger number in a file is a mistake, and would fill the memory
_TEXTS_OF_0_1 = ({"numbers"}, {"about"})  # version 0.1 wrote no checksum, and exactly one of these texts
# What the libraries raise for a file that is not what it should be; a stranger's file can provoke any of them.
_DAMAGE = (
    *(safetensors.SafetensorError, OSError, RuntimeError, MemoryError),
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
)


class CheckpointError(ValueError):
    """Weights or a checkpoint that are missing, broken, or belong to another network."""


@dataclass(frozen=True)
class TrainedWeights:
    """What a trained network consists of."""

    model: dict[str, Tensor]  # its state
    normalization: dict[str, Tensor]  # state of its :class:`torchscn.data.Normalization`
    about: dict[str, Any]  # "classes", "image_size"; for weights in the package also what their card says

    @property
    def num_classes(self) -> int:
        return len(self.about["classes"])

    @property
    def in_channels(self) -> int:
        return len(self.normalization["mean"])

    def stored_in(self, dtype: torch.dtype) -> "TrainedWeights":
        """These weights with dictionaries and matrices in another precision; penalties and statistics keep theirs."""
        model = {name: value.to(dtype) if value.dim() > 1 else value for name, value in self.model.items()}
        return TrainedWeights(model, self.normalization, self.about)


def list_pretrained() -> list[str]:
    """Names of the trained networks that come with the package, each ``MODEL-DATA``.

    Example:
        >>> "scn4-mnist" in list_pretrained()
        True
    """
    return sorted(path.stem for path in pretrained_folder().glob("*.safetensors"))


def load_pretrained(name: str) -> TrainedWeights:
    """Weights that come with the package, checked by their hash.

    Args:
        name: one of :func:`list_pretrained`.

    Raises:
        ValueError: there are no weights of that name.
        CheckpointError: the file is not the one that was published.

    Example:
        >>> load_pretrained("scn4-mnist").about["classes"][:3]
        ['0', '1', '2']
    """
    if name not in list_pretrained():
        raise ValueError(f"no weights {name!r} come with this version; available: {', '.join(list_pretrained())}.")
    path = pretrained_folder() / f"{name}.safetensors"
    if file_hash(path) != _known_hashes().get(path.name):
        raise CheckpointError(f"{path} is not the file that was published: its hash differs. Reinstall torchscn.")
    return read_weights(path)


def pretrained_folder() -> Path:
    """The folder of the weights, cards and hashes."""
    return Path(str(resources.files("torchscn") / "pretrained"))


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _known_hashes() -> dict[str, str]:
    path = pretrained_folder() / HASHES
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Reinstall torchscn.") from error
    return dict(zip(words[1::2], words[::2], strict=False))


def read_weights(path: Path) -> TrainedWeights:
    """The content of a file made by :func:`write_weights`.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or holds something else.
    """
    groups, texts = read_groups(path)
    return check_weights(groups, read_table(path, texts, "about"), str(path))


def read_table(path: Path, texts: Mapping[str, str], name: str) -> dict[str, Any]:
    """The JSON object in a text that :func:`read_groups` returned."""
    if name not in texts:
        raise CheckpointError(f"{path} is another kind of file: it holds {_and(texts)}, not {name!r}.")
    try:
        table = json.loads(texts[name])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({name!r} is not JSON: {error}).") from error
    if not isinstance(table, dict):
        raise CheckpointError(f"{path} cannot be read ({name!r} must be a table of values).")
    return table


def check_weights(groups: Mapping[str, dict[str, Tensor]], about: object, source: str) -> TrainedWeights:
    """The weights in these groups, if they make up a trained network that can be used; errors name the ``source``."""
    check_finite(groups, source)
    problem = _about_problem(about) or _group_problem(groups)
    if problem is None:
        assert isinstance(about, dict)
        problem = _mismatch(groups, about)
    if problem is not None:
        raise CheckpointError(f"{source} is not a trained network: {problem}.")
    assert isinstance(about, dict)
    return TrainedWeights(groups["model"], groups["normalization"], about)


def check_finite(groups: Mapping[str, Mapping[str, Tensor]], source: str, exempt: Collection[str] = ()) -> None:
    """Check that no number is infinite or NaN, except in the tensors named in ``exempt``."""
    for group, tensors in groups.items():
        for name, value in tensors.items():
            if name not in exempt and not is_finite(value):
                raise CheckpointError(f"{source} holds numbers that are not finite, in {group}/{name}.")


def is_finite(value: Tensor) -> bool:
    """Whether every entry is a finite number; kinds of numbers that torch cannot examine count as not finite."""
    if not (value.is_floating_point() or value.is_complex()):
        return True
    try:
        return bool(value.isfinite().all())
    except NotImplementedError:
        return False


def _about_problem(about: object) -> str | None:
    """What is wrong with the description of a network, if anything."""
    if not isinstance(about, dict):
        return "its description must be a table of values"
    classes, size = about.get("classes"), about.get("image_size")
    if not (isinstance(classes, list) and classes and all(isinstance(name, str) for name in classes)):
        return "'classes' must be a list of names"
    if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int for side in size)):
        return "'image_size' must be two whole numbers"
    if not all(1 <= side <= LARGEST_SIDE for side in size):
        return f"'image_size' must be between 1 and {LARGEST_SIDE}"
    return None


def _group_problem(groups: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """What is wrong with the tensors on their own, if anything."""
    if not {"model", "normalization"} <= groups.keys():
        return f"it must hold the tensors of 'model' and 'normalization', and holds {_and(groups)}"
    mean, std = (groups["normalization"].get(name) for name in ("mean", "std"))
    if mean is None or std is None or mean.ndim != 3 or 0 in mean.shape or std.shape != (len(mean), 1, 1):
        return "'normalization' must hold a mean and a standard deviation per channel"
    if not (mean.is_floating_point() and std.is_floating_point() and bool((std > 0).all())):
        return "'normalization' must hold numbers, the standard deviations above 0"
    return None


def _mismatch(groups: Mapping[str, Mapping[str, Tensor]], about: dict[str, Any]) -> str | None:
    """Where description and tensors contradict each other, if anywhere."""
    scores, n_classes = groups["model"].get("classifier.bias"), len(about["classes"])
    if scores is not None and scores.shape != (n_classes,):
        return f"it names {n_classes} classes, but its scores have shape {tuple(scores.shape)}"
    size = tuple(groups["normalization"]["mean"].shape[1:])
    if size not in ((1, 1), tuple(about["image_size"])):
        return f"its images are {about['image_size']}, but their mean is {list(size)}"
    return None


def _and(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"


def write_weights(path: Path, weights: TrainedWeights) -> None:
    """Save weights with everything that is needed to use them, in one file."""
    groups = {"model": weights.model, "normalization": weights.normalization}
    write_groups(path, groups, {"about": json.dumps(weights.about)})


def read_groups(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:
    """The named groups of tensors and the texts that :func:`write_groups` saved.

    Raises:
        CheckpointError: the file is not one of ours, or its content does not match its checksum.
    """
    try:
        tensors, texts = _read_checked(path)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            group, rest = name.split("/", 1)
            groups.setdefault(group, {})[rest] = value
        return groups, texts
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]  # torch adds its own stack to some
        raise CheckpointError(f"{path} cannot be read ({reason}).") from error


def _read_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and texts of a file, the checksum left out."""
    with safetensors.safe_open(path, framework="pt") as file:
        texts: dict[str, str] = dict(file.metadata() or {})
        if not texts:
            raise ValueError("it has no description")
        # A damaged name of the checksum must not make the file pass as one of version 0.1.
        if CHECKSUM not in texts and set(texts) not in _TEXTS_OF_0_1:
            raise ValueError(f"it has no checksum, and the texts {_and(texts)}")
        # Copies: the library's tensors are views of the file, and would change, or end the process, if that is
        # overwritten in place after it was checked.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    expected = texts.pop(CHECKSUM, None)
    if expected is not None and expected != _checksum(tensors, texts):
        raise ValueError("it is damaged: its content does not match its checksum")
    return tensors, texts


def _checksum(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """SHA-256 of everything that a file says, in hexadecimal."""
    names = sorted(tensors)
    layout = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([layout, sorted(texts.items())]).encode())
    for name in names:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_groups(path: Path, groups: Mapping[str, Mapping[str, Tensor]], texts: dict[str, str]) -> None:
    """Write a safetensors file with a checksum and flush it to disk.

    A failure (such as a full disk) leaves nothing behind.
    """
    # Copies, because the format does not support tied weights: two names for the same memory.
    flat = {
        f"{group}/{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for group, tensors in groups.items()
        for name, value in tensors.items()
    }
    content = safetensors.torch.save(flat, texts | {CHECKSUM: _checksum(flat, texts)})
    header, start = _sorted_header(content)
    replace_file(path, [header, memoryview(content)[start:]])


def _sorted_header(content: bytes) -> tuple[bytes, int]:
    """The header of a safetensors file with its texts in order, and where the tensors start.

    The library writes texts in random order; equal content should give equal files.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensors to 8 bytes
    return len(text).to_bytes(8, "little") + text, start


def fill_model(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights, whose names and shapes must match; the error names the first one that does not."""
    check_match(model.state_dict(), weights, source)
    model.load_state_dict(weights)


def check_match(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str) -> None:
    """Check that weights have the names and shapes of the ``expected`` ones, and are fractions where those are."""
    for name in [*expected, *weights]:
        ours = tuple(expected[name].shape) if name in expected else "nothing"
        theirs = tuple(weights[name].shape) if name in weights else "nothing"
        if ours != theirs:
            raise CheckpointError(
                f"{source} belongs to another network: for {name!r} it has {theirs}, this network has {ours}. "
                "Use the settings it was trained with, or another run folder."
            )
        if weights[name].is_floating_point() != expected[name].is_floating_point():
            kinds = f"{weights[name].dtype} where this network has {expected[name].dtype}"
            raise CheckpointError(f"{source} belongs to another network: for {name!r} it has {kinds}.")
