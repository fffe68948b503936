"""One thread for PyTorch: the suite already runs a test on each core."""

from importlib.util import find_spec

if find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)
