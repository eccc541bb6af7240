"""The table of metrics: a row here is all there is to a metric; tests, documentation and benchmarks read it."""

from __future__ import annotations

from . import metric_forms as forms
from . import metric_prepare as prepare
from .metric import Metric

_ROWS = (
    Metric(
        "braycurtis", "Σ w |x − y| / Σ w |x + y|", forms.BRAY_CURTIS, scipy="braycurtis",
        note="NaN for two rows of zeros",
    ),
    Metric("canberra", "Σ w |x − y| / (|x| + |y|)", forms.CANBERRA, scipy="canberra", note="terms 0/0 count as 0"),
    Metric(
        "chebyshev", "max |x − y| where w > 0", forms.LARGEST, scipy="chebyshev",
        aliases=("chebychev", "cheby", "cheb", "ch"), note="ties share the gradient; NaN is not skipped",
    ),
    Metric(
        "cityblock", "Σ w |x − y|", forms.ABSOLUTE, scipy="cityblock", aliases=("cblock", "cb", "c", "manhattan", "l1"),
    ),
    Metric(
        "correlation", "1 − cos of the rows minus their means", forms.HALF_OF_SQUARES, prepare.centred_directions,
        scipy="correlation", aliases=("co",), note="NaN for constant rows",
    ),
    Metric(
        "cosine", "1 − Σ w x y / √(Σ w x² Σ w y²)", forms.HALF_OF_SQUARES, prepare.directions, scipy="cosine",
        aliases=("cos",), note="NaN for rows of zeros",
    ),
    Metric(
        "dice", "s / (2t + s), s = Σ w (x(1 − y) + y(1 − x)), t = Σ w x y", forms.DICE, boolean=True,
        domain="boolean", scipy="dice", note="numbers are not turned into true and false, and have gradients",
    ),
    Metric(
        "euclidean", "√(Σ w (x − y)²)", forms.ROOT_OF_SQUARES, scipy="euclidean", aliases=("euclid", "eu", "e", "l2"),
    ),
    Metric(
        "hamming", "Σ w [x ≠ y] / Σ w", forms.HAMMING, prepare.with_total, differentiable=False, scipy="hamming",
        aliases=("matching", "hamm", "ha", "h"), note="NaN differs from everything",
    ),
    Metric(
        "hellinger", "√(½ Σ w (√x − √y)²)", forms.ROOT_OF_HALF, prepare.square_roots, domain="positive",
        note="√(1 − Σ √(x y)) for rows that sum to 1",
    ),
    Metric(
        "inner_product", "Σ w x y", forms.PRODUCT, zero_diagonal=False, aliases=("inner", "dot"),
        note="a similarity",
    ),
    Metric(
        "jaccard", "s / (s + t), s = Σ w [x ≠ y], t = Σ w [x ∧ y]", forms.JACCARD, prepare.truths,
        differentiable=False, boolean=True, domain="boolean", scipy="jaccard", aliases=("jacc", "ja", "j"),
        note="0 for two rows of zeros",
    ),
    Metric(
        "jensenshannon", "√(½ Σ x log(x / m) + ½ Σ y log(y / m)), m = (x + y) / 2", forms.SHANNON, prepare.shares,
        options=("base",), domain="positive", scipy="jensenshannon", aliases=("js",),
        note="rows are divided by their sums; NaN for rows of zeros; `base` is the logarithm's",
    ),
    Metric(
        "kl", "Σ w x log(x / y)", forms.RELATIVE_ENTROPY, prepare.logarithms, symmetric=False, domain="positive",
        aliases=("kl_divergence",),
        note="rows are taken as they are; infinite where y = 0 < x, NaN where x < 0 or y < 0",
    ),
    Metric(
        "mahalanobis", "√((x − y) VI (x − y)ᵀ)", forms.QUADRATIC, prepare.multiplied_by_inverse, options=("VI",),
        scipy="mahalanobis", aliases=("mahal", "mah"),
        note="VI is by default the inverse covariance of all rows; negative squares, of a VI that is not positive "
        "semidefinite, count as 0",
    ),
    Metric(
        "minkowski", "(Σ w |x − y|ᵖ)^(1/p)", forms.POWER, options=("w", "p"), scipy="minkowski",
        aliases=("mi", "m", "pnorm"), note="p = 0 counts what differs, p = ∞ is chebyshev; the default is p = 2",
    ),
    Metric(
        "rogerstanimoto", "2s / (Σ w + s), s = Σ w [x ≠ y]", forms.ROGERS_TANIMOTO, prepare.truths_with_total,
        differentiable=False, boolean=True, domain="boolean", scipy="rogerstanimoto",
    ),
    Metric(
        "russellrao", "(Σ w − t) / Σ w, t = Σ w [x ∧ y]", forms.RUSSELL_RAO, prepare.truths_with_total,
        zero_diagonal=False, differentiable=False, boolean=True, domain="boolean", scipy="russellrao",
    ),
    Metric(
        "seuclidean", "√(Σ (x − y)² / V)", forms.ROOT_OF_SQUARES, prepare.divided_by_variance, options=("V",),
        scipy="seuclidean", aliases=("se", "s"),
        note="V is by default the variance of all rows, their number less 1 being the divisor",
    ),
    Metric(
        "sokalsneath", "2s / (t + 2s), s = Σ w [x ≠ y], t = Σ w [x ∧ y]", forms.SOKAL_SNEATH, prepare.truths,
        differentiable=False, boolean=True, domain="boolean", scipy="sokalsneath", note="NaN for two rows of zeros",
    ),
    Metric(
        "sqeuclidean", "Σ w (x − y)²", forms.SQUARES, scipy="sqeuclidean", aliases=("sqe", "sqeuclid"),
    ),
    Metric(
        "yule", "2 b c / (a d + b c) of the counts a = [x ∧ y], b = [x ∧ ¬y], c = [¬x ∧ y], d = [¬x ∧ ¬y]", forms.YULE,
        prepare.truths_with_total, differentiable=False, boolean=True, domain="boolean", scipy="yule",
        note="0 where b c = 0",
    ),
)  # fmt: skip

METRICS: dict[str, Metric] = {row.name: row for row in _ROWS}
ALIASES: dict[str, str] = {alias: row.name for row in _ROWS for alias in row.aliases}
