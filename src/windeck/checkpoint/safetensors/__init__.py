"""From a checkpoint to safetensors files, and back, a chunk at a time."""

from windeck.checkpoint.safetensors.exporting import export
from windeck.checkpoint.safetensors.importing import import_

__all__ = ["export", "import_"]
