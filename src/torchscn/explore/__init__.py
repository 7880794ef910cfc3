"""A page on this machine to play with a trained network: draw a digit or drop a picture, and watch its codes."""

from torchscn.explore.drawing import Frame, center_drawing, choose_frame
from torchscn.explore.explorer import Explorer, RequestError
from torchscn.explore.server import make_server, serve

__all__ = ["Explorer", "Frame", "RequestError", "center_drawing", "choose_frame", "make_server", "serve"]
