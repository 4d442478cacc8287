"""Export of checkpoints to safetensors files, and import, chunk by chunk."""

from windeck._util.imports import needs_torch

with needs_torch("windeck.checkpoint.safetensors"):
    from windeck.checkpoint.safetensors.exporting import export
    from windeck.checkpoint.safetensors.importing import import_

__all__ = ["export", "import_"]
