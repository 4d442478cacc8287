"""A GPU that is the host: torch's calls for CUDA, on machines without one and with one.

Pinned memory and copies to the device are ordinary memory of torch; streams and events record what
waits for what. Tests see through it how batches are pinned and moved.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

__all__ = ["HostGpu", "host_gpu"]


class Stream:
    """A CUDA stream: it only records the events that it waits for."""

    device = torch.device("cpu")

    def __init__(self, device: object = None) -> None:
        self.cuda_stream = id(self)
        self.waited: list[object] = []

    def wait_event(self, event: object) -> None:
        self.waited.append(event)


class Event:
    """A CUDA event, of the stream that it was recorded on."""

    def record(self, stream: Stream) -> None:
        self.stream = stream


@dataclass
class HostGpu:
    """The calls of torch for CUDA.

    Attributes
    ----------
    current
        The current stream, which steps run on.
    pinned
        Tensors in pinned memory: new ones, and copies of others.
    moved
        Tensors that were copied to the device.
    held
        Tensors whose memory must not be used again before the current stream has read it.
    """

    current: Stream = field(default_factory=Stream)
    pinned: list[torch.Tensor] = field(default_factory=list)
    moved: list[torch.Tensor] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)


def host_gpu(patch: pytest.MonkeyPatch) -> HostGpu:
    """Replace torch's calls for CUDA until the patch ends."""
    gpu = HostGpu()
    empty, to = torch.empty, torch.Tensor.to

    def pinned_empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        made = empty(*size, **options)
        if pin_memory:
            gpu.pinned.append(made)
        return made

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        gpu.pinned.append(tensor.clone())
        return gpu.pinned[-1]

    def move(tensor: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        if not given or not isinstance(given[0], torch.device) or given[0].type != "cuda":
            return to(tensor, *given, **options)
        gpu.moved.append(tensor.clone())
        return gpu.moved[-1]

    patch.setattr(torch, "empty", pinned_empty)
    patch.setattr(torch.Tensor, "pin_memory", pin)
    patch.setattr(torch.Tensor, "to", move)
    patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: gpu.held.append(tensor))
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "Stream", Stream)
    patch.setattr(torch.cuda, "Event", Event)
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    patch.setattr(torch.cuda, "current_stream", lambda device: gpu.current)
    return gpu
