"""Attention within documents, as docs/attention.md makes it: equal to each document alone."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from itertools import chain, islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import windeck as wd
from support.pages import Page
from support.real_corpus import sources, write, write_library

pytest.importorskip("torch.nn.attention.flex_attention")
PAGE = Page("docs/attention.md")
LENGTH, ROWS, HEADS, WIDTH, EOS, BOS = 256, 4, 2, 8, 256, 257
Batch = dict[str, Any]
Attend = Callable[..., torch.Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page defines, without its corpus."""
    return PAGE.run({"__name__": "page", "torch": torch}, only=slice(1, None))


def write_paragraphs(root: Path) -> None:
    """A corpus of two shards: each paragraph of some real sources is a document."""
    texts = [path.read_bytes().split(b"\n\n") for path in sources()["asyncio"][:6]]
    for part, paragraphs in enumerate((texts[::2], texts[1::2])):
        folder = root / "dataset=asyncio"
        folder.mkdir(parents=True, exist_ok=True)
        write("batches", folder / f"py.part{part}.arrow", [*chain(*paragraphs)])


def whole_files(root: Path) -> tuple[Batch, list[slice]]:
    """The batch with most ends among whole files of Python's library, and its documents.

    Every sequence has a BOS and an EOS of its own; borders are found by the EOS of documents.
    """
    write_library(root, "lists")
    packed = wd.PackedSequences(
        wd.Documents(root),
        sequence_length=LENGTH,
        eos=EOS,
        sequence_bos=BOS,
        sequence_eos=BOS,
        order="mixed-global",
        keys=["document_ids", "max_seqlen"],
    )
    loader = wd.Loader(packed, batch_size=ROWS, seed=5)
    batch = max(islice(loader, 3000), key=lambda batch: int((batch["inputs"] == EOS).sum()))
    assert (batch["inputs"][:, 0] == BOS).all()
    ends = 1 + (batch["inputs"].flatten() == EOS).nonzero().flatten()
    borders = sorted({*ends.tolist(), *range(0, ROWS * LENGTH + 1, LENGTH)})
    return batch, [slice(*pair) for pair in pairwise(borders)]


@pytest.fixture(scope="module", params=["mixed", "padded", "whole files"])
def served(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Batch, list[slice]]:
    """A batch of real documents, and the places of each document in the flattened batch."""
    root = tmp_path_factory.mktemp("corpus")
    if request.param == "whole files":
        return whole_files(root)
    write_paragraphs(root)
    packed = wd.PackedSequences(
        wd.Documents(root),
        sequence_length=LENGTH,
        eos=EOS,
        pad=257 if request.param == "padded" else 0,
        padded=request.param == "padded",
        order="mixed",
        keys=["document_ids", "max_seqlen"],
    )
    loader = wd.Loader(packed, batch_size=ROWS, seed=5)
    batch = next(iter(loader))
    segments = []
    for row, pieces in enumerate(loader.documents(0)):
        start = row * LENGTH
        for piece in pieces:
            stop = min(start + piece.stop - piece.start, (row + 1) * LENGTH)
            segments += [slice(start, stop)] if start < stop else []
            start = stop
    assert len(segments) > ROWS
    return batch, segments


def heads(batch: Batch) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return queries, keys and values of the batch's tokens, and the weights they come from."""
    torch.manual_seed(3)
    tokens = torch.randn(258, HEADS * WIDTH, dtype=torch.float64)
    weights = torch.randn(3, HEADS * WIDTH, HEADS * WIDTH, dtype=torch.float64) / WIDTH
    weights.requires_grad_()
    embedded = tokens[batch["inputs"].reshape(-1)]
    made = [
        (embedded @ weight).view(ROWS, LENGTH, HEADS, WIDTH).transpose(1, 2) for weight in weights
    ]
    return made, weights


def causal(flat: list[torch.Tensor]) -> torch.Tensor:
    """Return dense causal attention over one document, of shape (tokens, heads, width)."""
    query, key, value = (x[None].transpose(1, 2) for x in flat)
    return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)[0]


def alone(made: list[torch.Tensor], segments: list[slice]) -> torch.Tensor:
    """Return dense causal attention of each document by itself; 0 elsewhere."""
    found = torch.zeros(ROWS * LENGTH, HEADS, WIDTH, dtype=made[0].dtype)
    flat = [x.transpose(1, 2).reshape(-1, HEADS, WIDTH) for x in made]
    for part in segments:
        found[part] = causal([x[part] for x in flat])
    return found.view(ROWS, LENGTH, HEADS, WIDTH).transpose(1, 2)


def documented(segments: list[slice]) -> torch.Tensor:
    """Return the mask of places that belong to documents, not to padding."""
    found = torch.zeros(ROWS * LENGTH, dtype=torch.bool)
    for part in segments:
        found[part] = True
    return found.view(ROWS, 1, LENGTH, 1)


def check(attend: Attend, batch: Batch, segments: list[slice], *, gradients: bool = True) -> None:
    """Compare outputs and gradients with those of each document alone."""
    made, weights = heads(batch)
    if not gradients:
        made = [x.detach() for x in made]
    wanted = alone(made, segments)
    found = torch.where(documented(segments), attend(*made, batch), 0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    if gradients:
        slopes = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view(wanted.shape)
        one, other = (
            torch.autograd.grad((x * slopes).sum(), weights, retain_graph=True)[0]
            for x in (found, wanted)
        )
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def by_blocks(page: dict[str, Any]) -> Attend:
    def attend(query: Any, key: Any, value: Any, batch: Batch) -> torch.Tensor:
        found: torch.Tensor = page["attend_by_blocks"](query, key, value, page["block_mask"](batch))
        return found

    return attend


def varlen_model(
    query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int
) -> torch.Tensor:
    """Causal attention from offsets, as its documentation says, in a loop."""
    assert torch.equal(cu_q, cu_k)
    assert cu_q.dtype == torch.int32
    assert cu_q[0] == 0
    assert cu_q[-1] == len(query)
    assert max_q == max_k >= int(cu_q.diff().max())
    parts = [
        causal([x[start:stop] for x in (query, key, value)])
        for start, stop in zip(cu_q.tolist(), cu_q.tolist()[1:], strict=False)
    ]
    return torch.cat(parts)


def varlen_attn(*args: Any, window_size: tuple[int, int]) -> torch.Tensor:
    """Stand for torch's function, which has no kernel for the CPU."""
    assert window_size == (-1, 0)
    return varlen_model(*args)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool,
) -> torch.Tensor:  # fmt: skip
    """Stand for flash-attn's function, with its names of arguments."""
    assert causal
    return varlen_model(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the models in place of functions for a GPU."""
    for name, function in (
        ("torch.nn.attention.varlen", varlen_attn),
        ("flash_attn", flash_attn_varlen_func),
    ):
        module = ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)


def test_links_lead_somewhere() -> None:
    PAGE.check_links()


@pytest.mark.usefixtures("demo_folder")
def test_first_block_runs() -> None:
    batch = next(iter(PAGE.run(only=slice(0, 1))["loader"]))
    assert batch["document_ids"].shape == (4, 256)


def test_flex_attention_stays_within_documents(page: Any, served: Any) -> None:
    check(by_blocks(page), *served, gradients=False)


def test_a_mask_keeps_outputs_and_gradients_within_documents(page: Any, served: Any) -> None:
    check(page["attend_by_mask"], *served)


@pytest.mark.parametrize("blocked", [False, True])
def test_ranks_that_share_a_sequence_attend_within_documents(
    page: Any, served: Any, blocked: bool
) -> None:
    batch, segments = served
    made, _ = heads(batch)
    query, key, value = (x.detach() for x in made)
    wanted = alone([query, key, value], segments)
    for rank in range(2):
        columns = torch.arange(LENGTH).view(4, -1)[[rank, 3 - rank]].flatten()
        mine = query[:, :, columns]
        if blocked:
            flex: Any = pytest.importorskip("torch.nn.attention.flex_attention")
            mask = page["within_documents_from"](batch, columns)
            shape = (ROWS, None, len(columns), LENGTH)
            blocks = flex.create_block_mask(mask, *shape, device="cpu")
            found = page["attend_by_blocks"](mine, key, value, blocks)
        else:
            found = page["attend_from_columns"](mine, key, value, batch, columns)
        found = torch.where(documented(segments)[:, :, columns], found, 0.0)
        torch.testing.assert_close(found, wanted[:, :, columns], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("name", ["attend_by_offsets", "attend_by_flash"])
def test_variable_length_attention_gets_the_borders(page: Any, served: Any, name: str) -> None:
    check(page[name], *served)


def test_borders_and_the_longest_document_are_in_the_batch(served: Any) -> None:
    batch, segments = served
    borders = {border for part in segments for border in (part.start, part.stop)}
    assert borders <= set(batch["cu_seqlens"].tolist())
    assert int(batch["max_seqlen"]) == int(batch["cu_seqlens"].diff().max()) <= LENGTH


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("fault", ["shifted", "joined", "plain"])
def test_wrong_borders_are_noticed(page: Any, served: Any, fault: str) -> None:
    batch, segments = served
    ids, offsets = batch["document_ids"], batch["cu_seqlens"]
    if fault == "shifted":
        wrong = {"document_ids": ids.roll(1, 1), "cu_seqlens": offsets.clone()}
        wrong["cu_seqlens"][1:-1] += 1
    elif fault == "joined":
        wrong = {"document_ids": ids // 2, "cu_seqlens": offsets[[0, *range(2, len(offsets))]]}
    else:
        rows = torch.arange(ROWS + 1, dtype=torch.int32)
        wrong = {"document_ids": torch.zeros_like(ids), "cu_seqlens": rows * LENGTH}
    forms = (by_blocks(page), page["attend_by_mask"], page["attend_by_offsets"])
    for attend in forms:
        with pytest.raises(AssertionError, match=r"not close|^assert \d+ >= "):
            check(attend, {**batch, **wrong}, segments, gradients=False)


def test_torch_accepts_the_arguments_of_variable_length_attention(page: Any, served: Any) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if "window_size" not in inspect.signature(varlen.varlen_attn).parameters:
        pytest.skip("torch 2.10 has is_causal instead")
    from torch._subclasses.fake_tensor import FakeTensorMode

    batch, _ = served
    shape = (ROWS, HEADS, LENGTH, WIDTH)
    with FakeTensorMode():
        query = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        offsets = torch.empty(len(batch["cu_seqlens"]), device="cuda", dtype=torch.int32)
        found = page["attend_by_offsets"](query, query, query, {"cu_seqlens": offsets})
    assert found.shape == shape
    assert found.dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["compiled", "attend_by_offsets"])
def test_kernels_of_a_gpu_stay_within_documents(page: Any, served: Any, name: str) -> None:
    batch, segments = served
    moved = {key: value.cuda() for key, value in batch.items()}
    made, _ = heads(batch)
    # Kernels want widths of 16 or more.
    made = [torch.nn.functional.pad(x.detach(), (0, 24)).cuda().bfloat16() for x in made]
    for x in made:
        x.requires_grad_()
    if name == "compiled":
        blocks = page["block_mask"](moved)
        compiled: Any = torch.compile(page["attend_by_blocks"])
        found = compiled(*made, blocks)
    else:
        found = page[name](*made, moved)
    wide = [x.detach().cpu().double()[..., :WIDTH].requires_grad_() for x in made]
    wide[0].data *= (WIDTH / (WIDTH + 24)) ** 0.5  # the scale is that of the wider heads
    wanted = alone(wide, segments)
    within = (wanted != 0).any(-1, keepdim=True)
    shown = torch.where(within, found[..., :WIDTH].cpu().double(), 0.0)
    torch.testing.assert_close(shown, wanted, rtol=0.05, atol=0.05)
    one = torch.autograd.grad(shown.sum(), made[1:])
    other = torch.autograd.grad(wanted.sum(), wide[1:])
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x.cpu().double()[..., :WIDTH], y, rtol=0.05, atol=0.05)


def test_models_of_transformers_find_documents_in_position_ids(page: Any, served: Any) -> None:
    transformers = pytest.importorskip("transformers")
    options = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**options, vocab_size=258, num_attention_heads=2)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).double()
    batch, segments = served
    found = page["logits"](model, batch).flatten(0, 1)
    flat = page["logits"](model, batch, one_row=True).flatten(0, 1)
    torch.testing.assert_close(found, flat, rtol=1e-6, atol=1e-6)
    tokens = batch["inputs"].reshape(1, -1)
    for part in segments[:40]:
        wanted = model(input_ids=tokens[:, part], use_cache=False).logits[0]
        torch.testing.assert_close(found[part], wanted, rtol=1e-6, atol=1e-6)
    # The page says that a cache makes documents see each other.
    crossed = model(input_ids=batch["inputs"], position_ids=batch["position_ids"])
    assert not torch.allclose(crossed.logits.flatten(0, 1), found, rtol=1e-6, atol=1e-6)
