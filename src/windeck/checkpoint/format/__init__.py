"""The stored format: keys, values, manifests, and tensors as boxes and chunks."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.checkpoint.format import keys, manifests, state_json, values
    from windeck.checkpoint.format.boxes import Box, boxes_in_range, shape_of, slices, whole
    from windeck.checkpoint.format.entries import TensorEntry, TensorPart, check_tiling
    from windeck.checkpoint.format.manifests import (
        encode_head,
        encode_json,
        encode_manifest,
        find_commit,
        read_manifest,
    )
    from windeck.checkpoint.format.table_blocks import (
        DEAD,
        INDEX_LINE,
        ROW,
        BlockSize,
        TableShape,
        last_key,
    )
    from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, encode

__all__ = [
    "BlockSize",
    "Box",
    "DEAD",
    "HEADER_BYTES",
    "INDEX_LINE",
    "Kind",
    "Label",
    "ROW",
    "TableShape",
    "TensorEntry",
    "TensorPart",
    "boxes_in_range",
    "check_tiling",
    "decode",
    "encode",
    "encode_head",
    "encode_json",
    "encode_manifest",
    "find_commit",
    "keys",
    "last_key",
    "manifests",
    "read_manifest",
    "shape_of",
    "slices",
    "state_json",
    "values",
    "whole",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "boxes": ("Box", "boxes_in_range", "shape_of", "slices", "whole"),
        "entries": ("TensorEntry", "TensorPart", "check_tiling"),
        "manifests": (
            "encode_head",
            "encode_json",
            "encode_manifest",
            "find_commit",
            "read_manifest",
        ),
        "table_blocks": ("DEAD", "INDEX_LINE", "ROW", "BlockSize", "TableShape", "last_key"),
        "values": ("HEADER_BYTES", "Kind", "Label", "decode", "encode"),
    },
)
