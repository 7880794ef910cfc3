"""``python -m torchscn`` is the command ``scn``."""

from torchscn.cli import main

main()
