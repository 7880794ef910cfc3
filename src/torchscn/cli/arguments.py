"""Arguments that several commands take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

__all__ = ["DataDir", "ImagePath", "WholeNumber"]


def _whole_number(kind: Any, tokens: Sequence[Any]) -> int:
    """Without this, 2.5 is rounded to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"it takes a whole number; got {tokens[0].value!r}.") from None


DataDir = Annotated[Path | None, Parameter(help="Folder of the data sets; TORCHSCN_DATA if not given.")]
ImagePath = Annotated[Path, Parameter(json_list=False)]  # a name may start with a bracket
WholeNumber = Annotated[int, Parameter(converter=_whole_number)]
