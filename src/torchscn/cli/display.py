"""Names and paths of strangers, shown as they are."""

from rich.text import Text

from torchscn.checks import printable

__all__ = ["plain"]


def plain(thing: object) -> Text:
    """Text for a table or console, without markup, emoji codes or control characters taking effect."""
    return Text(printable(str(thing)))
