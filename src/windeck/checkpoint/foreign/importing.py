"""Import of files and folders of other formats as a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from windeck._util.options import explain_options
from windeck.checkpoint.foreign.opening import read_file
from windeck.checkpoint.format.state_json import iter_tensors
from windeck.checkpoint.stores import Store
from windeck.checkpoint.write.commits import CHUNK_BYTES
from windeck.checkpoint.write.imports import ForeignState, import_state

__all__ = ["import_"]


@explain_options
def import_(
    path: str | os.PathLike[str],
    store: Store | str,
    *,
    step: int | None = None,
    root: str | None = None,
    without: str | None = None,
    embeddings: Mapping[str, Any] | None = None,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
) -> int:
    """Import a file or folder of another format as a checkpoint, in one commit.

    Parameters
    ----------
    path
        A file of torch.save (``.pt``, ``.pth``, ``.bin``, ``.ckpt``); a folder of
        torch.distributed.checkpoint; safetensors or ``.bin`` files with their index, or the folder
        with them, as `save_pretrained` writes it; an ``.npz`` archive.
    store, namespace, chunk_bytes
        As for `checkpoint.save`.
    step
        None: the step in the file (``step``, ``global_step`` or ``iteration``), or 0.
    root
        The root of all of it. None: the state of the model becomes ``model``, that of the optimizer
        ``optimizer``, the rest ``extra``, by the usual keys (``state_dict``, ...); see
        the guide on importing.
    without
        Leave out tensors whose names match a glob, such as ``*.embedding_bags.*``; names are those
        that ``windeck view PATH`` prints.
    embeddings
        Embedding tables to save in the same commit, such as those that `import_table` filled.

    Returns
    -------
    int
        The generation committed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    TypeError, ValueError
        For a file of an unknown format, a damaged one, one that only code in it can read, and for
        values that cannot be saved. The former checkpoint stays in force.
    RuntimeError, OSError
        As `checkpoint.save`.

    Notes
    -----
    O(bytes) time. Nothing is unpickled except by torch with ``weights_only=True``. Memory: a few
    chunks; of a DCP folder two shards of a tensor, or all shards of the same rows if it is cut by
    columns; of an archive two arrays.

    Examples
    --------
    >>> import tempfile, torch
    >>> from windeck import checkpoint
    >>> file = f"{tempfile.mkdtemp()}/last.pt"
    >>> torch.save({"model_state_dict": {"w": torch.ones(2)}, "epoch": 3, "step": 70}, file)
    >>> store = checkpoint.stores.open_store("memory://")
    >>> checkpoint.import_(file, store)
    1
    >>> model = {"w": torch.zeros(2)}
    >>> loaded = checkpoint.load(store, model=model)
    >>> loaded.step, loaded.extra, model
    (70, {'epoch': 3, 'step': 70}, {'w': tensor([1., 1.])})
    """
    state = read_file(path, root=root)
    if without is not None:
        state = _leave_out(state, without)
    return import_state(
        store, state, step=step, namespace=namespace, chunk_bytes=chunk_bytes,
        embeddings=embeddings,
    )  # fmt: skip


def _leave_out(state: ForeignState, pattern: str) -> ForeignState:
    """Return a state without the tensors that match; raise a ValueError if none does."""
    trees = {root: _pruned(tree, root, pattern) for root, tree in state.trees.items()}
    if trees == state.trees:
        raise ValueError(f"no tensor matches {pattern!r}, expected a glob of names to leave out")
    kept = {name for root, tree in trees.items() for _, name in iter_tensors(tree, root)}
    tensors = {name: tensor for name, tensor in state.tensors.items() if name in kept}
    return replace(state, trees=trees, tensors=tensors)


def _pruned(tree: Any, name: str, pattern: str) -> Any:
    """Return a tree without the tensors in dicts whose names match."""
    if type(tree) is not dict or "dict" not in tree:
        return tree
    pairs = []
    for key, item in tree["dict"]:
        place = f"{name}/{key}"
        alone = type(item) is dict and "tensor" in item
        if not (alone and fnmatchcase(place, pattern)):
            pairs.append([key, _pruned(item, place, pattern)])
    return {"dict": pairs}
