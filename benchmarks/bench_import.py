"""Time of `import windeck`, beside the imports that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from measure import Row, compare_fresh, fresh_seconds


def rows() -> Iterator[Row]:
    fresh_seconds("import windeck, sys; assert 'torch' not in sys.modules")
    # Ours is the longer one: the ratio asked for, 1 / 1.5, is the rival's time over ours.
    yield Row(
        question="import",
        ours="import windeck",
        rival="import numpy, pyarrow",
        ratio=compare_fresh("import windeck", "import numpy, pyarrow", rounds=15),
        needed=1 / 1.5,
        bound="reading and running modules",
    )
