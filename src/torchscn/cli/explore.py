"""``scn explore``: a page to play with a trained network."""

import sys

from torchscn.checks import printable
from torchscn.cli.arguments import DataDir, WholeNumber
from torchscn.cli.messages import complain, naming_flags

__all__ = ["explore"]


def explore(
    run: str,
    *,
    layer: WholeNumber = 1,
    port: WholeNumber = 0,
    browser: bool = True,
    data_dir: DataDir = None,
) -> None:
    """Play with a trained network in the browser: draw a digit or drop a picture, and watch codes and answer change.

    The page is served on this machine alone and loads nothing from elsewhere; Ctrl-C ends it.

    Parameters
    ----------
    run
        Folder of a run, or name of a network that comes with the package (listed by `scn info`).
    layer
        The layer to show first.
    port
        Where the page is; 0 takes any port that is free.
    browser
        Open the page in the browser; with --no-browser, only its address is printed.
    """
    import torch

    from torchscn.explore import Explorer, make_server, serve
    from torchscn.training import load_trained

    torch.set_num_threads(1)  # for one image at a time, threads cost more than they bring
    trained = load_trained(run)
    if trained.note:
        complain(f"note: {trained.note}")
    with naming_flags("layer", "port"):
        explorer = Explorer(trained, name=run, data_dir=data_dir, layer=layer)
        server = make_server(explorer, port)
    print(printable(f"{run} is at {server.url} until you press Ctrl-C."), flush=True)
    serve(server, (lambda: _open(server.url)) if browser else None)
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal has written ^C


def _open(url: str) -> None:
    import webbrowser

    try:
        opened = webbrowser.open(url)
    except Exception:  # whatever a browser does wrong, the page is there
        opened = False
    if not opened:
        complain("no browser could be opened; go to the address above.")
