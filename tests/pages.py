"""The tables of the documentation that are written from those of the library, which tests compare.

``python -m tests.pages NAME`` prints ``operations`` (``docs/maps.md``), ``reductions`` (``docs/reductions.md``),
``kernels`` (``docs/kernels.md``) or ``distances``, all of ``docs/distances.md``.
"""

from __future__ import annotations

import sys

from kernmantle.ir.ops import OPS, Op
from kernmantle.ir.reductions import REDUCTIONS, Reduction
from kernmantle.pairwise.kernel_row import Row
from kernmantle.pairwise.kernels import KERNELS
from kernmantle.pairwise.metric import Metric
from kernmantle.pairwise.metrics import METRICS

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


def _operation(row: Op) -> str:
    names = dict.fromkeys((row.name, *row.torch, *([row.numpy] if row.numpy else [])))
    spelt = ", ".join(f"`{name}`" for name in names)
    sign = f"`{row.infix}`".replace("|", "\\|") if row.infix else ""
    return f"| {spelt} | {sign} | {'yes' if row.integer else ''} | {'yes' if row.slopes else ''} | {row.singular} |"


def operations() -> str:
    """Return one line an operation."""
    head = ["| names | sign | integers | gradient | where the slope is not finite |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_operation, OPS.values())])


def _reduction(row: Reduction) -> str:
    return f"| `{row.name}` | {row.meaning} | `{row.identity}` | {'yes' if row.differentiable else ''} |"


def reductions() -> str:
    """Return one line a reduction."""
    head = ["| name | result | over nothing | gradient |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_reduction, REDUCTIONS.values())])


def _arguments(row: Row) -> str:
    defaults = [(h.name, "columns" if isinstance(h.default, str) else f"{h.default:g}", h.meaning) for h in row.hyper]
    defaults += [(option.name, f"{option.default:g}", option.allowed) for option in row.options]
    return ", ".join(f"`{name}={default}` {meaning}" for name, default, meaning in defaults)


def kernels() -> str:
    """Return one line a kernel."""
    lines = ["| kernel | k(x, y) | arguments | k(x, x) | type | notes |", "|---|---|---|---|---|---|"]
    for row in KERNELS.values():
        formula, kind = row.formula.replace("|", "\\|"), "stationary" if row.stationary else ""
        lines.append(f"| `{row.name}` | {formula} | {_arguments(row)} | `{row.diagonal}` | {kind} | {row.summary} |")
    return "\n".join(lines)


def _yes(flag: bool) -> str:
    return "yes" if flag else ""


def _metric(row: Metric) -> str:
    options = ", ".join(f"`{name}`" for name in row.options)
    flags = [_yes(flag) for flag in (row.symmetric, row.zero_diagonal, row.differentiable)]
    cells = [f"`{row.name}`", row.formula.replace("|", "\\|"), options, *flags, row.note, ", ".join(row.aliases)]
    return "| " + " | ".join(cells) + " |"


def metrics() -> str:
    """Return one line a metric."""
    head = "| metric | definition | options | symmetric | zero | gradients | notes | also called |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(_metric, METRICS.values())]) + "\n"


def distances() -> str:
    """Return the whole page of distances."""
    return _HEAD + metrics() + _TAIL


if __name__ == "__main__":
    pages = {page.__name__: page for page in (operations, reductions, kernels, distances)}
    sys.stdout.write(pages[sys.argv[1]]().rstrip() + "\n")
