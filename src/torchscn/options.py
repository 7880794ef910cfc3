"""Every option, defined once: its name, default, meaning and rule. Works without torch.

:class:`Options` says how a problem is solved; :class:`CodingOptions` adds the options of a layer, :class:`LayerOptions`
those of norms and shortcuts, and :class:`NetworkOptions` the shape of the paper's networks. Each is frozen and checked
when it is created, and :meth:`Options.change` is the only place that knows which options belong together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from inspect import Parameter, Signature
from typing import Any, NamedTuple, Self, TypeVar

from torchscn.checks import check_choice, check_number, did_you_mean

__all__ = [
    "PRESETS",
    "CodingOptions",
    "LayerOptions",
    "NetworkOptions",
    "Options",
    "Rule",
    "Settings",
    "accept_options",
    "check_modules",
    "choose_options",
    "setting",
]


F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="Settings")


class Rule(NamedTuple):
    """What a value must be: one of ``choices``, or a number in this range."""

    choices: tuple[str, ...] | None
    at_least: float | None
    at_most: float | None
    below: float | None
    whole: bool

    def check(self, name: str, value: Any) -> None:
        if self.choices is not None:
            check_choice(name, value, self.choices)
        if self.at_least is not None:
            check_number(name, value, at_least=self.at_least, whole=self.whole)
        if self.at_most is not None and value > self.at_most:
            raise ValueError(f"{name} must be at most {self.at_most:g}; got {value}.")
        if self.below is not None and value >= self.below:
            raise ValueError(f"{name} must be below {self.below:g}; got {value}.")


def setting(
    default: Any,
    meaning: str,
    *,
    choices: Sequence[str] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> Any:
    """A field of :class:`Settings` with its meaning and rule; a field whose default is None may be None."""
    rule = Rule(None if choices is None else tuple(choices), at_least, at_most, below, whole)
    return field(default=default, metadata={"meaning": meaning, "rule": rule})


@dataclass(frozen=True)
class Settings:
    """Named values that are checked when the object is created."""

    def __post_init__(self) -> None:
        for name, entry in self.__dataclass_fields__.items():
            value = getattr(self, name)
            if "rule" in entry.metadata and (value is not None or entry.default is not None):
                _check_field(entry, value)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all settings, in order."""
        return tuple(cls.__dataclass_fields__)

    def part(self, kind: type[S]) -> S:
        """The settings that ``kind`` also has, as an object of that class."""
        return kind(**{name: getattr(self, name) for name in kind.names()})


def _check_field(entry: "Field[Any]", value: Any) -> None:
    if isinstance(entry.default, bool) and not isinstance(value, bool):
        raise TypeError(f"{entry.name} must be True or False; got {value!r} ({type(value).__name__}).")
    entry.metadata["rule"].check(entry.name, value)


_TOL_MEANING = "relative accuracy of the codes; 0 with max_iter: exactly that many iterations"
_STOP_MEANING = 'judge convergence per "signal", or per "block" of neighbours (compiled kernel)'
_STOPS = ("signal", "block")


@dataclass(frozen=True)
class Options(Settings):
    """How a problem is solved and differentiated.

    Solvers and gradient rules are looked up by name where they are registered, so a new one needs no change here.

    Example:
        >>> Options(tol=1e-6).change(max_iter=50).max_iter
        50
    """

    solver: str = setting("auto", "how codes are computed, one of torchscn.list_solvers()")
    tol: float = setting(1e-6, _TOL_MEANING, at_least=0)
    max_iter: int | None = setting(
        None, "cap on the solver's iterations; none: the solver's own", at_least=1, whole=True
    )
    grad: str = setting("implicit", 'gradient rule: "implicit", or "unrolled" with solver="fista"')
    stop: str = setting("signal", _STOP_MEANING, choices=_STOPS)

    def change(self, **given: Any) -> Self:
        """A copy of these options with some of them changed.

        A new solver resets what was chosen for the old one: unless given here as well, ``tol``, ``max_iter`` and
        ``grad`` return to their defaults. In the same way, a new ``tol`` resets ``max_iter``. None for an option that
        has no such value counts as not given.

        Raises:
            TypeError: there is no option of that name.

        Example:
            >>> authors = Options(solver="fista", tol=0.0, max_iter=50)
            >>> authors.change(tol=1e-3)
            Options(solver='fista', tol=0.001, max_iter=None, grad='implicit', stop='signal')
            >>> authors.change(solver="coordinate")
            Options(solver='coordinate', tol=1e-06, max_iter=None, grad='implicit', stop='signal')
        """
        for name in given:
            if name not in self.__dataclass_fields__:
                raise TypeError(f"there is no option {name!r}.{did_you_mean(name, self.names())}")
        own = {name: entry.default for name, entry in self.__dataclass_fields__.items()}
        given = {name: value for name, value in given.items() if value is not None or own[name] is None}
        if given.get("solver", self.solver) != self.solver:
            outdated: tuple[str, ...] = ("tol", "max_iter", "grad")
        else:
            outdated = ("max_iter",) if given.get("tol", self.tol) != self.tol else ()
        defaults: dict[str, Any] = {name: own[name] for name in outdated}
        return replace(self, **(defaults | given))

    @property
    def has_fixed_steps(self) -> bool:
        """Whether there is no tolerance, only a number of iterations to run."""
        return self.tol == 0 and self.max_iter is not None


@dataclass(frozen=True)
class CodingOptions(Options):
    """The options of one sparse coding layer, apart from its shape."""

    tol: float = setting(1e-2, _TOL_MEANING, at_least=0)
    stop: str = setting("block", _STOP_MEANING, choices=_STOPS)
    constraint: str = setting(
        "non_negative",
        'which codes are allowed: "non_negative", "signed", or "sum_to_one"',
        choices=("non_negative", "signed", "sum_to_one"),
    )
    lam1: float = setting(0.0, "initial l1 penalty", at_least=0)
    lam2: float = setting(1e-3, "l2 penalty; above 0 the codes are unique", at_least=0)
    per_atom: bool = setting(False, "one lam1 per atom instead of one per layer")
    learn_lam1: bool = setting(True, "whether lam1 is trained")
    unit_norm: bool = setting(False, "use the atoms scaled to unit norm")
    init: str = setting(
        "unit",
        'initial atoms: of about "unit" norm, or "small" as in the authors\' program (std 1 / n_features)',
        choices=("unit", "small"),
    )


@dataclass(frozen=True)
class LayerOptions(CodingOptions):
    """Options shared by all layers of a network; convolutions ignore those of sparse coding, layers ``shortcuts``."""

    norm: str = setting(
        "before",
        'batch norm "before" each layer and once at the end, or "after" each layer',
        choices=("before", "after"),
    )
    affine: bool = setting(False, "learn scale and bias of the batch norm")
    shortcuts: str = setting(
        "none",
        "add the input of every module of two layers to its output; where shapes differ, average pooling and zeros "
        '("pooled"), or a learned 1x1 convolution ("projected")',
        choices=("none", "pooled", "projected"),
    )


N_MODULES = 7  # bottleneck modules of the paper's networks


def check_modules(what: str, value: Any) -> None:
    """Check that ``value`` lists modules of the paper's networks, each at most once.

    Example:
        >>> check_modules("downsample", (4, 99))
        Traceback (most recent call last):
        ValueError: downsample must list modules from 1 to 7, each at most once; got 4, 99.
    """
    rule = f"{what} must list modules from 1 to {N_MODULES}, each at most once"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{rule}; got {value!r} ({type(value).__name__}).")
    known = all(isinstance(number, int) and 1 <= number <= N_MODULES for number in value)
    if not known or len(set(value)) < len(value):
        raise ValueError(f"{rule}; got {', '.join(map(repr, value))}.")


@dataclass(frozen=True)
class NetworkOptions(LayerOptions):
    """What :func:`torchscn.create_model` can change about a network of the paper."""

    stem: int = setting(16, "width of the first slim layer (the paper uses 8 on MNIST)", at_least=1, whole=True)
    width: int | None = setting(
        None,
        "the paper's K: wide layers have K times the atoms of slim ones; none: as in the model's name",
        at_least=1,
        whole=True,
    )
    order: str = setting(
        "reduce_expand", "slim layer first in a module, or wide layer first", choices=("reduce_expand", "expand_reduce")
    )
    downsample: tuple[int, ...] = setting((4, 6), "modules, counted from 1, whose first layer has stride 2")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_modules("downsample", self.downsample)


# Where the paper's text and its authors' program differ; neither is the default as a whole (see docs/paper.md).
PRESETS: dict[str, dict[str, Any]] = {
    "authors": {
        "order": "reduce_expand",
        "downsample": (4, 6),
        "norm": "before",
        "init": "small",
        "lam2": 1e-6,
        "solver": "fista",
        "tol": 0.0,
        "max_iter": 50,
    },
    "text": {
        "order": "expand_reduce",
        "downsample": (6, 7),
        "norm": "after",
        "init": "unit",
        "lam2": 1e-3,
        "solver": "fista",
        "tol": 1e-3,
    },
}


def choose_options(preset: str | None, *changes: Mapping[str, Any]) -> NetworkOptions:
    """The options of a preset (None: the defaults), with the sets of changes applied in order.

    Example:
        >>> choose_options("authors", {"solver": "auto", "lam2": 0.1}).max_iter is None
        True
    """
    options = NetworkOptions()
    if preset is not None:
        check_choice("preset", preset, PRESETS)
        options = options.change(**PRESETS[preset])
    for given in changes:
        options = options.change(**given)
    return options


def accept_options(kind: type[Options], **defaults: Any) -> Callable[[F], F]:
    """Decorator for a function whose ``**options`` are fields of ``kind``: ``help()`` shows them by name.

    Args:
        kind: whose fields they are.
        defaults: where the function has other defaults than ``kind``.
    """

    def name_them(function: F) -> F:
        signature = Signature.from_callable(function)
        own = [p for p in signature.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        named = [
            Parameter(
                entry.name,
                Parameter.KEYWORD_ONLY,
                default=defaults.get(entry.name, entry.default),
                annotation=entry.type,
            )
            for entry in fields(kind)
        ]
        function.__signature__ = signature.replace(parameters=own + named)  # type: ignore[attr-defined]
        return function

    return name_them
