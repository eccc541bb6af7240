"""``docs/distances.md``, written from the table: ``python -m kernmantle.pairwise.metric_page > docs/distances.md``."""

from __future__ import annotations

import sys

from .metric import Metric
from .metrics import METRICS

_HEAD = """# Distances

`km.cdist(x, y=None, *, p=None, metric="minkowski", w=None, V=None, VI=None, base=None, root=True, out=None,
precision=None)` gives the distances between all rows of x and all rows of y, `km.pdist(x, ...)` those between the
rows of x, each pair once. Every metric is one fused pass: time O(m n k), memory of inputs and result. This page is
generated from the table in `kernmantle.pairwise.metrics`.

```python
km.cdist(x, y)                                # Euclidean: metric="minkowski", p=2
km.cdist(x, y, p=1.3, w=weights)              # any p from 0 to infinity; p may be a tensor, a batch of powers
km.cdist(x, metric="canberra")                # y omitted: half the work, exact zeros on the diagonal
km.cdist(x, y, metric="cosine")               # every name that scipy knows, and a few more
```

"""

_TAIL = """
* **symmetric**: d(x, y) = d(y, x), bit for bit, and when y is omitted only half is computed; mahalanobis and yule
  compute both halves. The inner product is the vendor's matrix product, and symmetric as that is.
* **zero**: d(x, x) is exactly 0 (NaN where the metric is 0/0). Dice promises it for true and false.
* **gradients**: of every order, for x, y, weights and every option. Where a distance has a kink (equal rows, equal
  entries) the gradient is 0, never NaN. A metric without gradients refuses an input that requires one.
* **options**: what it takes beside x and y. Anything else raises `ParameterError`.

## Types

torch tensors of integers or bool are computed in float32, numpy arrays of them in float64, as scipy does. float16 and
bfloat16 are computed in float32 and returned in their own type, under autocast in float32. float32 and float64 stay
what they are, so that a float32 numpy array gives a float32 result where scipy gives float64.

## Power

p is 2 by default. p = 0 counts the entries that differ, p = ∞ is the largest difference, where weights are masks:
entries with w > 0 count. A Python number picks the kernel of its power class (0.5, 1, 1.5, 2, 2.5, 3, 4, any other); a
tensor takes the general kernel, whose p is read when it runs. Neither compiles anew for a new value. A tensor p on a
device is not read on the host: where it is negative or NaN the result is NaN, elsewhere an error comes first.

## Other than scipy

* NaN in a row gives NaN in chebyshev, where scipy skips it.
* Cosine and correlation are half the squared difference of rows of length 1: small distances keep their digits, and
  equal rows are exactly 0 apart. Jensen-Shannon is computed from (x − y) / (x + y) for the same reason.
* Jensen-Shannon of a row of zeros is NaN where scipy gives infinity. Rows without columns are 0 apart by it, by cosine
  and by correlation.
* Weighted dice is that of `scipy.spatial.distance.dice`; scipy's weighted cdist counts the entries that differ instead.
* Negative weights in a numpy array are an error, as scipy has it. Tensors of weights are not checked for a sign, which
  would be read from the device: the sum is taken as it is written.
* `root=False` leaves the final root out; metrics that have none do not change.
"""


def _yes(flag: bool) -> str:
    return "yes" if flag else ""


def _line(row: Metric) -> str:
    options = ", ".join(f"`{name}`" for name in row.options)
    flags = [_yes(flag) for flag in (row.symmetric, row.zero_diagonal, row.differentiable)]
    cells = [f"`{row.name}`", row.formula.replace("|", "\\|"), options, *flags, row.note, ", ".join(row.aliases)]
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    """One line per metric."""
    head = "| metric | definition | options | symmetric | zero | gradients | to know | also called |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(_line, METRICS.values())]) + "\n"


def page() -> str:
    """The whole page."""
    return _HEAD + table() + _TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
