"""``docs/distances.md``, written from the table: ``python -m kernmantle.pairwise.metric_page > docs/distances.md``."""

from __future__ import annotations

import sys

from .metric import Metric
from .metrics import METRICS

_HEAD = """# Distances

`km.cdist(x, y=None, *, p=None, metric="minkowski", w=None, V=None, VI=None, base=None, root=True, out=None,
precision=None)` returns the distances between all rows of x and all rows of y. `km.pdist(x, ...)` returns the distance
of each pair of rows of x once. Every metric is one fused pass in O(m n k) time, with no memory beyond inputs and
result. This page is generated from the table in `kernmantle.pairwise.metrics`.

```python
import torch, kernmantle as km

x, y, weights = torch.rand(200, 8), torch.rand(300, 8), torch.rand(8)
km.cdist(x, y)                                # Euclidean: metric="minkowski", p=2
km.cdist(x, y, p=1.3, w=weights)              # any p from 0 to infinity; p may be a tensor, a batch of powers
km.cdist(x, metric="canberra")                # y omitted: half the work, exact zeros on the diagonal
km.cdist(x, y, metric="cosine")               # every metric of SciPy, and a few more
km.cdist(x, y, lambda a, b: abs(a - b) / (1 + abs(a - b)))   # your own: of two entries, summed over the columns
```

"""

_TAIL = """
* **symmetric**: d(x, y) equals d(y, x) bit for bit, and only one half is computed when y is omitted (both halves for
  mahalanobis and yule). The inner product is computed by the vendor's matrix product and is as symmetric as that.
* **zero**: d(x, x) is exactly 0 (NaN where the metric is 0/0). For dice this holds for Boolean input.
* **gradients**: of every order, with respect to x, y, weights and every option. At kinks of a distance (equal rows,
  equal entries) the gradient is 0, never NaN. A metric without gradients raises an error if an input requires a
  gradient.
* **options**: the arguments it takes in addition to x and y. Any other raises `ParameterError`.

## Types

Integer and Boolean torch tensors are computed in float32, NumPy arrays of these types in float64 as in SciPy. float16
and bfloat16 are computed in float32 and returned in their own type (in float32 under autocast). float32 and float64
are computed and returned in their own type: a float32 NumPy array gives a float32 result, whereas SciPy gives float64.

## Power

The default is p = 2. p = 0 counts the entries that differ. p = ∞ is the largest difference; weights then act as masks
that select the entries with w > 0. If p is a Python number, the specialised kernel of its class runs (0.5, 1, 1.5, 2,
2.5, 3, 4, any other). If p is a tensor, the general kernel runs and reads p on the device. A new value does not
trigger recompilation in either case. The host does not read a tensor p on a GPU, so a negative or NaN p gives NaN
there; in all other cases it raises an error.

## Differences from SciPy

* NaN in a row gives NaN for chebyshev; SciPy skips it.
* Cosine and correlation are computed as half the squared difference of normalised rows: small distances keep their
  precision, and equal rows have distance exactly 0. Jensen-Shannon is computed from (x − y) / (x + y) for the same
  reason.
* Jensen-Shannon of a row of zeros is NaN; SciPy returns infinity. Rows with no columns have distance 0 for
  Jensen-Shannon, cosine and correlation.
* Weighted dice agrees with `scipy.spatial.distance.dice`; SciPy's weighted `cdist` counts the entries that differ
  instead.
* Negative weights in a NumPy array raise an error, as in SciPy. The sign of weights in a tensor is not checked, since
  that would need a read from the device.
* `root=False` omits the final root. Metrics without a root do not change.
"""


def _yes(flag: bool) -> str:
    return "yes" if flag else ""


def _line(row: Metric) -> str:
    options = ", ".join(f"`{name}`" for name in row.options)
    flags = [_yes(flag) for flag in (row.symmetric, row.zero_diagonal, row.differentiable)]
    cells = [f"`{row.name}`", row.formula.replace("|", "\\|"), options, *flags, row.note, ", ".join(row.aliases)]
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    """Return one line per metric."""
    head = "| metric | definition | options | symmetric | zero | gradients | notes | also called |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(_line, METRICS.values())]) + "\n"


def page() -> str:
    """Return the whole page."""
    return _HEAD + table() + _TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
