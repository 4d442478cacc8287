"""Export of checkpoints to safetensors files, and import, chunk by chunk."""

from windeck.checkpoint.safetensors.exporting import export
from windeck.checkpoint.safetensors.importing import import_

__all__ = ["export", "import_"]
