"""Arguments that several commands take."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["DataDir"]

DataDir = Annotated[Path | None, Parameter(help="Folder of the data sets; TORCHSCN_DATA if not given.")]
