"""Did the killed and resumed runs see what one uninterrupted run would have seen?

The answer is worked out here from the permutation and the list of windows alone. Nothing of the
loader or the stream takes part, and nothing of what the runs say about themselves.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from windeck import Permutation
from windeck.sources.windows import Windows
from windeck.tools.forecaster import Forecaster

Samples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Proof:
    """Four claims, each true or not, and how many samples they are about."""

    samples: int
    as_computed: bool
    as_uninterrupted: bool
    each_once: bool
    same_weights: bool

    @property
    def holds(self) -> bool:
        """Whether all four claims are true."""
        return self.as_computed and self.as_uninterrupted and self.each_once and self.same_weights


def expected_samples(windows: Windows, *, batch_size: int, seed: int, steps: int) -> Samples:
    """The samples of steps 1 to `steps`, (samples, 3): step, series and start row.

    Epoch e deals ``Permutation(len(windows), seed=seed, epoch=e)`` in batches, the last one short.
    """
    count = len(windows)
    per_epoch = -(-count // batch_size)
    parts = []
    for epoch in range(-(-steps // per_epoch)):
        batches = min(per_epoch, steps - epoch * per_epoch)
        order = Permutation(count, seed=seed, epoch=epoch)[: min(count, batches * batch_size)]
        step = 1 + epoch * per_epoch + np.arange(len(order)) // batch_size
        parts.append(np.stack((step, *windows.locate(order)), axis=1))
    return np.concatenate(parts)


def examine(
    expected: Samples,
    *,
    uninterrupted: Samples,
    killed: Samples,
    resumed: Samples,
    resumed_from: int,
    weights: Forecaster,
    resumed_weights: dict[str, torch.Tensor],
) -> Proof:
    """Compares the logs of three processes with what was expected, and the weights they ended in.

    Parameters
    ----------
    expected, uninterrupted, killed, resumed
        Samples as (samples, 3): step, series and start row.
    resumed_from
        The step whose state was resumed; what the killed process did after it was done again.
    """
    kept = killed[killed[:, 0] <= resumed_from]
    together = np.concatenate((kept, resumed))
    # Also what was lost with the process had been the right samples.
    lost = killed[killed[:, 0] > resumed_from]
    again = expected[(expected[:, 0] > resumed_from)][: len(lost)]
    return Proof(
        samples=len(together),
        as_computed=np.array_equal(together, expected) and np.array_equal(lost, again),
        as_uninterrupted=np.array_equal(together, uninterrupted),
        each_once=_each_once(together, len(expected)),
        same_weights=all(
            torch.equal(tensor, resumed_weights[name])
            for name, tensor in weights.state_dict().items()
        ),
    )


def _each_once(samples: Samples, length: int) -> bool:
    """Whether no window comes an (n+1)-th time before every window has come n times."""
    _, which = np.unique(samples[:, 1:], axis=0, return_inverse=True)
    counts = np.bincount(which.ravel())
    return len(samples) == length and int(counts.max() - counts.min()) <= 1
