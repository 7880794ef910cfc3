"""Files that are written completely or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file and flush it to disk before it takes the place of an older one.

    Raises:
        OSError: it could not be written, for instance to a full disk; nothing is left behind, and an older file is
            still there.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error}. Free some space or choose another folder.") from error
    finally:
        temporary.unlink(missing_ok=True)
