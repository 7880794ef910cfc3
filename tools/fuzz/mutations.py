"""Damage to the content of a file, as disks, networks, editors and strangers do it; every way has a name."""

import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["Mutation", "mutate_bytes", "mutate_header", "mutate_json", "mutate_lines", "mutate_text"]

Mutation = tuple[str, bytes]
"""What was done, and the damaged content."""

RANGES = (1, 2, 4, 16, 64, 512)  # bytes that are damaged at once

# Values that a program seldom expects, as they are written in JSON; some are not JSON at all.
ODD_VALUES = (
    *("null", "true", "false", "0", "-1", "-0.0", "1.5", "3", '""', '"x"', "[]", "{}", "[[]]", '{"a": null}', "[1, 2]"),
    *("1e308", "-1e308", "1e999", "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000, "1" + "0" * 18),
    *('"' + "x" * 10_000 + '"', '"\\u0000"', '"\\ud800"', '"\\u001b[31m"', '"../../etc"', '"nan"', '"1e999"'),
    *("[" * 60 + "]" * 60, "[" * 100_000, '{"a":' * 100_000, "undefined", "'x'", "0x10"),
)
PLACE = "an odd value"  # stands for one of them until the rest is text


def mutate_bytes(content: bytes, dice: random.Random, end: int | None = None) -> Mutation:
    """Damage somewhere in the first ``end`` bytes; None: anywhere."""
    size = len(content) if end is None else min(end, len(content))
    at = dice.randrange(max(size, 1))
    until = min(len(content), at + dice.choice(RANGES))
    name = dice.choice(list(_BYTES))
    return f"{name} at byte {at} to {until}", _BYTES[name](content, at, until, dice)


def _flip(content: bytes, at: int, until: int, dice: random.Random) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[at] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _overwrite(content: bytes, at: int, until: int, dice: random.Random) -> bytes:
    return content[:at] + dice.randbytes(until - at) + content[until:]


def _copy_over(content: bytes, at: int, until: int, dice: random.Random) -> bytes:
    other = dice.randrange(len(content) - (until - at) + 1)
    return content[:other] + content[at:until] + content[other + until - at :]


def _swap(content: bytes, at: int, until: int, dice: random.Random) -> bytes:
    """The range and the one after it, in the other order."""
    after = min(len(content), 2 * until - at)
    return content[:at] + content[until:after] + content[at:until] + content[after:]


_BYTES: dict[str, Callable[[bytes, int, int, random.Random], bytes]] = {
    "bit flipped": _flip,
    "bytes overwritten": _overwrite,
    "bytes zeroed": lambda content, at, until, dice: content[:at] + bytes(until - at) + content[until:],
    "file cut off": lambda content, at, until, dice: content[:at],
    "start missing": lambda content, at, until, dice: content[until:],
    "bytes inserted": lambda content, at, until, dice: content[:at] + dice.randbytes(until - at) + content[at:],
    "bytes deleted": lambda content, at, until, dice: content[:at] + content[until:],
    "bytes twice": lambda content, at, until, dice: content[:until] + content[at:],
    "bytes copied elsewhere": _copy_over,
    "bytes swapped": _swap,
    "file twice": lambda content, at, until, dice: content + content,
    "zeros from here on": lambda content, at, until, dice: content[:at] + bytes(len(content) - at),
    "zeros at the end": lambda content, at, until, dice: content + bytes(until - at),
    "empty file": lambda content, at, until, dice: b"",
}


def mutate_header(content: bytes, dice: random.Random) -> Mutation:
    """Damage to a safetensors file, as often to its small header as to its tensors."""
    header = 8 + int.from_bytes(content[:8], "little")
    return mutate_bytes(content, dice, dice.choice((8, header, header, None)))


def mutate_text(content: bytes, dice: random.Random) -> Mutation:
    """Damage to a text file: that of any file, and other encodings and line ends."""
    if dice.random() < 0.7:
        return mutate_bytes(content, dice)
    text = content.decode()
    name, changed = dice.choice(
        (
            ("as UTF-16", text.encode("utf-16")),
            ("as UTF-32", text.encode("utf-32")),
            ("with a byte order mark", text.encode("utf-8-sig")),
            ("in Latin-1 with an accent", text.encode() + "\u00e9".encode("latin-1")),
            ("with Windows line ends", text.replace("\n", "\r\n").encode()),
            ("with spaces at the end", text.encode() + b" \n\n"),
            ("with a form feed", text.replace("\n", "\f\n", 1).encode()),
            ("in upper case", text.upper().encode()),
        )
    )
    return name, changed


def mutate_json(content: bytes, dice: random.Random) -> Mutation:
    """Damage to a JSON file: that of any text, and values of the wrong kind or in the wrong place."""
    if dice.random() < 0.4:
        return mutate_text(content, dice)
    table = json.loads(content)
    places = list(_places(table))
    if dice.random() < 0.05 or not places:
        value = dice.choice(ODD_VALUES)
        return f"only {value[:20]}", value.encode()
    holder, key = dice.choice(places)
    name = dice.choice(list(_PLACES))
    value = _PLACES[name](holder, key, dice.choice(places), dice)
    return f"{name} {key!r} {value[:20]}", json.dumps(table, indent=2).replace(f'"{PLACE}"', value).encode()


def mutate_lines(content: bytes, dice: random.Random) -> Mutation:
    """Damage to a file with one JSON object per line: that of one of them, or lines that are lost, twice or swapped."""
    lines = content.splitlines(keepends=True)
    at = dice.randrange(len(lines))
    if dice.random() < 0.3:
        name, chosen = dice.choice(
            (
                ("line lost", lines[:at] + lines[at + 1 :]),
                ("line twice", lines[: at + 1] + lines[at:]),
                ("lines in the other order", lines[::-1]),
                ("empty line", [*lines[:at], b"\n", *lines[at:]]),
                ("lines together", [b"".join(lines).replace(b"\n", b" ")]),
            )
        )
        return f"{name} {at}", b"".join(chosen)
    if dice.random() < 0.3:
        return mutate_text(content, dice)
    name, changed = mutate_json(lines[at], dice)
    return f"in line {at}, {name}", b"".join([*lines[:at], changed.replace(b"\n", b" ") + b"\n", *lines[at + 1 :]])


def _places(value: Any) -> "list[tuple[Any, Any]]":
    """Every container with each of its keys, at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


def _put(holder: Any, key: Any, other: tuple[Any, Any], dice: random.Random) -> str:
    holder[key] = PLACE
    return dice.choice(ODD_VALUES)


def _delete(holder: Any, key: Any, other: tuple[Any, Any], dice: random.Random) -> str:
    del holder[key]
    return ""


def _rename(holder: Any, key: Any, other: tuple[Any, Any], dice: random.Random) -> str:
    if isinstance(holder, dict):
        holder[dice.choice((key[:-1], f"{key}s", key.upper(), "", "\u2603"))] = holder.pop(key)
    return ""


def _copy(holder: Any, key: Any, other: tuple[Any, Any], dice: random.Random) -> str:
    """The value of another place in this one; a copy, so that nothing can contain itself."""
    holder[key] = json.loads(json.dumps(other[0][other[1]]))
    return ""


def _add(holder: Any, key: Any, other: tuple[Any, Any], dice: random.Random) -> str:
    if isinstance(holder, dict):
        holder["extra"] = PLACE
    else:
        holder.insert(key, PLACE)
    return dice.choice(ODD_VALUES)


_PLACES: dict[str, Callable[[Any, Any, tuple[Any, Any], random.Random], str]] = {
    "odd value at": _put,
    "no": _delete,
    "other name for": _rename,
    "another's value at": _copy,
    "one more next to": _add,
}
