"""The suite of several GPUs: what goes round in a ring, Kronecker products, solvers of one matrix."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from kernmantle import distributed as spread
from kernmantle.distributed.redistribute import Cyclic
from kernmantle.distributed.rows import rows
from kernmantle.errors import DeviceError, KernmantleWarning, ParameterError
from kernmantle.kron import kron_matmul
from kernmantle.linalg.cusolvermp import Grid, block_of, columns_of
from kernmantle.linalg.kernel import ROWS
from kernmantle.linalg.worker import communicator
from kernmantle.pairwise import CONSTRUCTORS, Kernel
from kernmantle.testing import assert_close

from . import group, machine, store
from .case import DTYPES, Target
from .group import Entrant, Member, Shared
from .run import blank
from .timing import Plan

OURS, ALONE = "kernmantle", "one GPU, as much work"
H200 = "H200"
WEAK = Target("faster", 0.9, ALONE, H200)
PICKED, WIDTH, ITERATIONS = 4, 64, 6
RIDGE = 1.0
ROUTINES = {"cholesky": "potrf", "lu": "getrf"}
WARM = 3000
"""Order of a first spectrum, large enough for the kernels that large ones take."""
MODULE = __name__


@dataclass(frozen=True)
class Sizes:
    """Orders of matrices, and (rows, size, count) of the factors of Kronecker products."""

    gram: int = 80_000
    matmul: int = 160_000
    cg: int = 100_000
    order: int = 20_000
    together: int = 138_000
    system: int = 195_000
    krons: Sequence[Sequence[int]] = ((1024, 64, 3), (320, 128, 3))


def _normal(member: Member, *shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The same on every process."""
    generator = torch.Generator(member.device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=member.device, dtype=dtype)


def _off(found: torch.Tensor, exact: torch.Tensor, depth: int, magnitude: Any = None) -> float:
    """Largest error relative to the largest number; AssertionError where it is not one of rounding."""
    assert_close(found, exact, dtype=found.dtype, depth=depth, magnitude=magnitude)
    return float((found.double().cpu() - exact.cpu()).abs().max() / exact.abs().max()) if found.numel() else 0.0


def _kernel() -> Kernel:
    return CONSTRUCTORS["Laplace"](20.0, p=1.3)


def _exact(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """That kernel by torch in float64."""
    return (-torch.cdist(x.double().cpu(), y.double().cpu(), p=1.3) / 20).exp()


def _gram(member: Member, n: int, alone: Any) -> Entrant:
    here = member.share(n) if alone is None else slice(None)
    whole = _normal(member, n, WIDTH, seed=1).float()
    x, y = _normal(member, n, WIDTH, seed=2).float()[here].clone(), whole[here].clone()
    kernel = _kernel()
    return Entrant(
        lambda: spread.gram(kernel, x, y, group=alone),
        lambda found: _off(found[:PICKED], _exact(x[:PICKED], whole), WIDTH),
    )


def _matmul(member: Member, n: int, alone: Any) -> Entrant:
    """Of two sets: pairs within one are fewer, as far as they are in one place."""
    here = member.share(n) if alone is None else slice(None)
    whole, v = _normal(member, n, WIDTH, seed=1).float(), _normal(member, n, 4, seed=2).float()
    x, y, mine = _normal(member, n, WIDTH, seed=3).float()[here].clone(), whole[here].clone(), v[here].clone()
    kernel = _kernel()

    def check(found: torch.Tensor) -> float:
        matrix, wide = _exact(x[:PICKED], whole), v.double().cpu()
        return _off(found[:PICKED], matrix @ wide, n, matrix @ wide.abs())

    return Entrant(lambda: spread.matmul(kernel, x, y, mine, group=alone), check)


def _cg(member: Member, n: int, alone: Any) -> Entrant:
    """So many iterations on a matrix whose condition number is at most 2, in which they reach a thousandth."""
    here = member.share(n) if alone is None else slice(None)
    x, b = _normal(member, n, WIDTH, seed=1).float()[here].clone(), _normal(member, n, 1, seed=2).float()[here].clone()
    kernel = _kernel()

    def call() -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KernmantleWarning)
            operator = spread.operator(kernel, x, diagonal=float(n), group=alone)
            return spread.cg(operator, b, max_iterations=ITERATIONS, tolerance=1e-12).x

    def check(found: torch.Tensor) -> float:
        product = spread.matmul(kernel, x, None, found, diagonal=float(n), group=alone)
        error = float((product - b).norm() / b.norm())
        assert error < 1e-3, f"a residual of {error:.2g}"
        return error

    return Entrant(call, check)


def _weak(make: Callable[[Member, int, Any], Entrant], n: int, member: Member) -> Mapping[str, Entrant]:
    """All processes, and each alone with as many pairs of rows as its part has."""
    return {OURS: make(member, n, None), ALONE: make(member, int(n / member.size**0.5), member.alone)}


def _plain(x: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The product by torch, one factor after the other."""
    value, left = x, 1
    for factor in factors:
        value = torch.einsum("mapb,pq->maqb", value.reshape(x.shape[0], left, factor.shape[0], -1), factor)
        left *= factor.shape[1]
    return value.reshape(x.shape[0], -1)


def _total(member: Member, value: torch.Tensor, alone: bool) -> float:
    """A number of this process alone, or of all together."""
    return float(value) if alone else sum(member.all_gathered(float(value)))


def _kron(member: Member, shape: Sequence[int], columns: bool, backward: bool, alone: bool) -> Entrant:
    """A product of rows that are spread, or whose columns are, or its gradients."""
    m, size, count = shape
    factors = [(_normal(member, size, size, seed=place) / size**0.5).float() for place in range(count)]
    mesh = member.mesh(1, member.size) if columns else member.mesh(member.size, 1)
    here = slice(None) if alone else spread.kron_columns(factors, mesh)
    own = m if alone or columns else m // member.size
    whole = _normal(member, own, size**count, seed=9, dtype=torch.float32)
    few, x = whole[:PICKED].double(), whole[:, here].contiguous()
    product = kron_matmul if alone else partial(spread.kron_matmul, mesh=mesh)

    def check(found: torch.Tensor) -> float:
        exact = _plain(few, [factor.double() for factor in factors])[:, here].cpu()
        return _off(found[:PICKED], exact, size * count, exact.abs().max())

    if not backward:
        return Entrant(lambda: product(x, factors), check)
    wanted = [tensor.requires_grad_() for tensor in (x, *factors)]
    with torch.enable_grad():
        result = product(x, factors)
    slope = _normal(member, *result.shape, seed=10 + member.rank, dtype=torch.float32)

    def check_slopes(found: Sequence[torch.Tensor]) -> float:
        """The product is linear in each operand, so that each with its gradient gives the product with the slope."""
        terms = result.detach().double() * slope
        value, top = (_total(member, each, alone) for each in (terms.sum(), terms.square().sum()))
        inner = [(a.detach().double() * b.double()).sum() for a, b in zip(wanted, found, strict=True)]
        sums = [_total(member, inner[0], alone), *map(float, inner[1:])]
        error = max(abs(each - value) for each in sums) / top**0.5
        assert error < 1e-3, f"gradients differ from the product by {error:.2g} of the norm of its terms"
        return error

    return Entrant(lambda: torch.autograd.grad(result, wanted, slope, retain_graph=True), check_slopes)


def _krons(shape: Sequence[int], columns: bool, backward: bool, member: Member) -> Mapping[str, Entrant]:
    m, size, count = shape
    return {
        OURS: _kron(member, (m * member.size, size, count), columns, backward, alone=False),
        f"{OURS}, {m} rows in all": _kron(member, shape, columns, backward, alone=False),
        ALONE: _kron(member, shape, columns, backward, alone=True),
    }


def _only(member: Member, make: Callable[[], Entrant], once: bool = False) -> Entrant:
    """The first process alone, while the others wait."""
    made = Entrant(lambda: None, lambda _: 0.0) if member.rank else make()
    return Entrant(made.call, made.check, once)


def _near_unity(member: Member, n: int, dtype: str, here: slice) -> tuple[torch.Tensor, ...]:
    """Rows of a symmetric matrix whose condition number is near 2, right-hand sides, and their solution."""
    thin, x = _normal(member, n, 64, seed=1), _normal(member, n, 4, seed=2)
    local = thin[here].to(DTYPES[dtype]) @ thin.to(DTYPES[dtype]).mT / n
    local.diagonal(here.start).add_(1)
    return local, (x + thin @ (thin.mT @ x) / n)[here].to(DTYPES[dtype]), x[here].cpu()


def _torch_factors(kind: str, n: int, dtype: str, member: Member) -> Entrant:
    a, b, x = _near_unity(member, n, dtype, slice(0, n))

    def call() -> torch.Tensor:
        if kind == "lu":
            return torch.linalg.solve_ex(a, b)[0]
        return torch.cholesky_solve(b, torch.linalg.cholesky_ex(a).L)

    return Entrant(call, lambda found: _off(found, x, n, x.abs().max()))


@cache
def _grid(rank: int, size: int, device: torch.device) -> Grid:
    return Grid(communicator(device), rank, size, device)


def _factors(kind: str, n: int, dtype: str, member: Member) -> Mapping[str, Entrant]:
    """The whole call, what cuSOLVERMp takes of it, and one GPU with the whole matrix."""
    local, b, x = _near_unity(member, n, dtype, member.share(n))
    solve = {"cholesky": spread.solve_cholesky, "lu": spread.solve_lu}[kind]
    entrants = {OURS: Entrant(lambda: solve(local, b).x, lambda found: _off(found, x, n, x.abs().max()))}
    if member.device.type == "cpu":
        return entrants
    block = block_of(ROUTINES[kind], n, member.size)
    cyclic, sides = (Cyclic(rows(local, "a"), width, block) for width in (n, b.shape[1]))
    kept, side = cyclic.of_symmetric(local), sides.columns(b)
    grid, room, right = _grid(member.rank, member.size, member.device), kept.clone(), side.clone()
    call = grid.solve_cholesky if kind == "cholesky" else grid.solve_lu

    def inner() -> torch.Tensor:
        call(room.copy_(kept), n, right.copy_(side), b.shape[1])
        return right

    entrants["cuSOLVERMp alone"] = Entrant(inner, lambda found: _off(sides.rows(found), x, n, x.abs().max()))
    return entrants | {"torch, one GPU": _only(member, partial(_torch_factors, kind, n, dtype, member))}


def _columns(thin: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """Some columns, as rows, of the matrix of :func:`_near_unity`, made in their own memory."""
    matrix = thin.new_empty(len(here), len(thin))
    for top in range(0, len(here), ROWS):
        part = matrix[top : top + ROWS]
        torch.addmm(part, thin[here[top : top + ROWS]], thin.mT, beta=0, alpha=1 / len(thin), out=part)
    matrix[torch.arange(len(here), device=here.device), here] += 1
    return matrix


def _together(kind: str, n: int, member: Member) -> Mapping[str, Entrant]:
    """A factor of a matrix in float64 that is written where its columns belong, so that nothing is there twice."""
    if member.device.type == "cpu":
        return _factors(kind, n, "f64", member)
    thin, x = _normal(member, n, 64, seed=1), _normal(member, n, 4, seed=2)
    grid = _grid(member.rank, member.size, member.device)
    solve = grid.solve_cholesky if kind == "cholesky" else grid.solve_lu

    def call(rows: int) -> torch.Tensor:
        top, block = thin[:rows], block_of(ROUTINES[kind], rows, member.size)
        here = columns_of(rows, member.rank, member.size, block).to(member.device)
        right = (x[:rows] + top @ (top.mT @ x[:rows]) / rows).mT[: 0 if member.rank else None].contiguous()
        info = solve(_columns(top, here), rows, right, x.shape[1])
        assert not info, f"an info of {info}"
        return right

    call(min(n, 2000))
    return {OURS: Entrant(lambda: call(n), lambda found: _off(found, x.mT[: len(found)], n, x.abs().max()), once=True)}


def _spectrum(n: int, dtype: str, member: Member) -> Mapping[str, Entrant]:
    """All pairs of a kernel's matrix; the last vectors here are checked against it."""
    points = _normal(member, n, 2, seed=1).to(DTYPES[dtype])
    kernel, here = CONSTRUCTORS["Laplace"](20.0, p=2), member.share(n)
    local, limit = kernel(points[here], points), 10 * n * torch.finfo(points.dtype).eps

    def check(w: torch.Tensor, v: torch.Tensor, top: torch.Tensor) -> float:
        gap, unit = kernel(points) @ v - v * w, torch.eye(v.shape[1], device=v.device)
        error = float(gap.norm(dim=0).max() / top)
        apart = float((v.mT @ v - unit).abs().max())
        assert max(error, apart) < limit, f"residual {error:.2g}, orthogonal to {apart:.2g}"
        return error

    def last(found: Any) -> float:
        return check(found.w[here][-8:], found.v[:, -8:], found.w[-1])

    entrants = {OURS: Entrant(lambda: spread.eigh(local), last, once=True)}
    few = min(n, WARM)
    small = _near_unity(member, few, dtype, member.share(few))[0]
    spread.eigh(small)
    if member.device.type == "cpu":
        return entrants
    grid = _grid(member.rank, member.size, member.device)
    dealt = [Cyclic(rows(a, "a"), len(a[0]), block_of("syevd", len(a[0]), member.size)) for a in (small, local)]
    grid.eigh(dealt[0].of_symmetric(small), few, True)
    kept, places = dealt[1].of_symmetric(local), dealt[1].here[-8:].to(member.device)
    entrants["cuSOLVERMp alone"] = Entrant(
        lambda: grid.eigh(kept.clone(), n, True),
        lambda found: check(found.w[places], found.v[-8:].mT, found.w[-1]),
        once=True,
    )

    def whole() -> Entrant:
        a = kernel(points)
        torch.linalg.eigh(a[:few, :few])
        return Entrant(lambda: torch.linalg.eigh(a), lambda found: check(found[0][-8:], found[1][:, -8:], found[0][-1]))

    return entrants | {"torch, one GPU": _only(member, whole, once=True)}


def _system(n: int, member: Member) -> Mapping[str, Entrant]:
    """A regularised matrix that is written into its factor; what is checked is its product with the solution."""
    here, kernel = member.share(n), CONSTRUCTORS["Laplace"](3.0, p=2)
    x, y = (_normal(member, n, width, seed=width)[here].float() for width in (10, 1))

    def check(found: torch.Tensor) -> float:
        gap = spread.matmul(kernel, x, None, found, diagonal=RIDGE) - y
        error = float(gap.norm() / y.norm())
        assert error < 1e-2, f"a residual of {error:.2g}"
        return error

    spread.solve_kernel(kernel, x[:2000], y[:2000], RIDGE)
    return {OURS: Entrant(lambda: spread.solve_kernel(kernel, x, y, RIDGE).x, check, once=True)}


def cases(sizes: Sizes) -> list[Shared]:
    """The table."""
    rings: list[tuple[str, Callable[[Member, int, Any], Entrant], int]] = [
        ("gram", _gram, sizes.gram), ("matmul", _matmul, sizes.matmul), ("cg", _cg, sizes.cg),
    ]  # fmt: skip
    found = [
        Shared(
            f"ring {name} n={n}", f"{name} of {n} x {n} pairs of {WIDTH} numbers, Laplace p=1.3, rows in a ring",
            partial(_weak, make, n), (WEAK,),
        )
        for name, make, n in rings
    ]  # fmt: skip
    for shape in sizes.krons:
        m, size, count = shape
        for columns in (False, True):
            for backward in (False, True):
                name = f"kron {m}*{size}^{count} {'columns' if columns else 'rows'}{' backward' * backward}"
                title = f"{name}: {m} rows for each process, {'columns' if columns else 'rows'} spread"
                found.append(Shared(name, title, partial(_krons, shape, columns, backward), () if columns else (WEAK,)))
    n, bounds = sizes.order, {("cholesky", "f32"): 94e-3, ("cholesky", "f64"): 98e-3, ("eigh", "f32"): 4.21}
    bounds["eigh", "f64"] = 6.03
    for dtype in ("f32", "f64"):
        for kind in ("cholesky", "lu", "eigh"):
            prepare = partial(_spectrum, n, dtype) if kind == "eigh" else partial(_factors, kind, n, dtype)
            targets = [Target("seconds", value, machine=H200) for key, value in bounds.items() if key == (kind, dtype)]
            title = f"{kind} of a matrix of order {n} whose rows are spread, {dtype}"
            found.append(Shared(f"{kind} n={n} {dtype}", title, prepare, tuple(targets)))
    n = sizes.together
    for kind in ("cholesky", "lu"):
        title = f"{kind} of a matrix of order {n} that is written into its factor's memory, f64"
        found.append(Shared(f"{kind} n={n} f64, written in place", title, partial(_together, kind, n)))
    n = sizes.system
    title = f"(K + I) c = y of {n} x 10, Laplace, written into its Cholesky factor"
    return [*found, Shared(f"kernel system n={n}", title, partial(_system, n))]


def run(
    path: Path, names: Sequence[str], plan: Plan, budget: float, again: bool, sizes: Sizes | None = None,
    processes: int = 0,
) -> list[store.Row]:  # fmt: skip
    """Measure the cases that the file lacks in this state, by one process a GPU; rows of all of them.

    With ``processes`` by so many on the CPU.
    """
    size, device = processes or torch.cuda.device_count(), "cpu" if processes else "cuda"
    if size < 2:
        raise DeviceError(f"the suite 'many' needs two NVIDIA GPUs or more, and torch finds {size}")
    sizes = sizes or Sizes()
    table, stamp = cases(sizes), machine.stamp(device)
    unknown = set(names) - {case.name for case in table}
    if unknown:
        raise ParameterError(f"many has no case {min(unknown)!r}; it has {', '.join(case.name for case in table)}")
    wanted = [case for case in table if not names or case.name in names]
    blanks = {case.name: blank(case.probe(size, device), "many", stamp) for case in wanted}
    known = set() if again else store.done(store.read(path))
    due = [name for name, row in blanks.items() if store.identity(row) not in known]
    if due:
        group.start(MODULE, path, size, stamp, due, sizes, plan, budget)
    states = {store.identity(row) for row in blanks.values()}
    return [row for row in store.read(path) if store.identity(row) in states]


def main(arguments: Sequence[str]) -> None:
    """One of the processes."""
    task = json.loads(arguments[0])
    group.serve(task, cases(Sizes(**task["sizes"])))


if __name__ == "__main__":
    main(sys.argv[1:])
