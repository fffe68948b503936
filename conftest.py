"""Docstrings of modules that need PyTorch are examples only where it is installed."""

from importlib.util import find_spec
from pathlib import Path

PROBE = Path(__file__).parent / "src" / "synchronoise" / "probe"

collect_ignore = [
    str(path) for path in PROBE.glob("*.py") if find_spec("torch") is None and "\nimport torch\n" in path.read_text()
]
