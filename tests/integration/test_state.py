"""However parameters are written, layers multiply by what they hold now and snapshots by what they held when made.

Ways of writing x layers x algorithms x modes x earlier calls. Results are compared with dense matrices that numpy fills
in float64 from the weights read back at that moment.
"""

from __future__ import annotations

import ast
import copy
import itertools
import random
import threading
from datetime import timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import kernmantle as km
from kernmantle.testing import assert_close

CHAINS = {
    "square": [(4, 4, 4, 1), (1, 4, 4, 4)],
    "uneven": [(2, 3, 4, 1), (1, 6, 3, 2)],
    "one": [(3, 3, 2, 2)],
    "levels": [(8, 2, 2, 1), (4, 2, 2, 2), (2, 2, 2, 4), (1, 2, 2, 8)],
    "wide": [(2, 24, 16, 1), (1, 40, 48, 1)],
}
ALGORITHMS = ("auto", "kernel", "bmm", "einsum", "dense", "sparse", "bsr")
ROWS = (1, 5, 64)


class Factors(nn.Module):
    """A layer that multiplies by a Kronecker product of its parameters."""

    def __init__(self, by: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.by = by
        self.weights = nn.ParameterList(torch.randn(shape, dtype=dtype) for shape in ((3, 4), (5, 2)))
        self.in_features = 15 if by == "right" else 8
        self.batch_last = by == "left"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.weights
        if self.by == "linear":
            return km.kron_linear(x, first, second, 0.5)
        if self.by == "operator":
            return km.KroneckerProduct([first, second]) @ x.mT
        return km.kron_matmul(x, [first, second], side=self.by, store=self.training)


def values(module):
    """Parameters as they are now, in float64."""
    return {name: np.array(own.detach().tolist(), dtype=np.float64) for name, own in module.named_parameters()}


def filled(weight):
    """The matrix of a Kronecker-sparse factor, entry by entry."""
    a, b, c, d = weight.shape
    matrix = np.zeros((a, b, d, a, c, d))
    for i, l in itertools.product(range(a), range(d)):
        matrix[i, :, l, i, :, l] = weight[i, :, :, l]
    return matrix.reshape(a * b * d, a * c * d)


def expected(module, held, x):
    """The result with some values of the parameters, and the size of its terms; the batch in front."""
    x, found = np.array(x.detach().tolist(), dtype=np.float64), []
    for of in (lambda value: value, np.abs):
        own = {name: of(value) for name, value in held.items()}
        if isinstance(module, Factors):
            matrix = np.kron(own["weights.0"], own["weights.1"]) * (0.5 if module.by == "linear" else 1)
            matrix = matrix.T if module.by == "right" else matrix
        else:
            matrix = np.eye(module.in_features)
            for place in range(len(module.patterns)):
                matrix = filled(own[f"weights.{place}"]) @ matrix
        found.append(of(x) @ matrix.T + own.get("bias", 0.0))
    return found


def rows_of(module, count, dtype, wanted):
    x = torch.randn(count, module.in_features, dtype=dtype)
    return x.requires_grad_(wanted)


def result(module, x, held=None):
    """The result with the batch in front."""
    given = x.mT if module.batch_last else x
    found = module(given) if held is None else torch.func.functional_call(module, held, (given,))
    transposed = module.batch_last or getattr(module, "by", "") == "operator"
    return found.mT if transposed else found


def check(module, x, held, like=None):
    """Assert that a result is that of some values of the parameters."""
    value, terms = expected(like or module, held, x)
    found = result(module, x).detach()
    kind = "float32" if found.dtype == torch.float32 else "float64"
    assert_close(found, torch.from_numpy(value), dtype=kind, depth=512, magnitude=torch.from_numpy(terms))


@cache
def groups():
    """Two process groups of gloo that meet in this process."""
    store, made = dist.HashStore(), [None, None]

    def join(rank):
        made[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def collectively(tensor, call):
    """Both members call; the second does so with a tensor whose memory is that of the parameter."""
    first, second = groups()
    other = torch.randn_like(tensor)
    thread = threading.Thread(target=lambda: call(first, other).wait())
    thread.start()
    call(second, tensor).wait()
    thread.join()


def broadcast(module):
    for own in module.parameters():
        collectively(own.detach(), lambda group, tensor: group.broadcast([tensor], dist.BroadcastOptions()))


def all_reduce(module):
    for own in module.parameters():
        collectively(own.detach(), lambda group, tensor: group.allreduce([tensor]))


def in_place(module):
    with torch.no_grad():
        for own in module.parameters():
            own.mul_(-2).add_(0.5)


def through_data(module):
    for own in module.parameters():
        own.data.mul_(3)


def copied_to_data(module):
    for own in module.parameters():
        own.data.copy_(torch.randn_like(own))


def new_data(module):
    for own in module.parameters():
        own.data = torch.randn_like(own).contiguous()


def through_numpy(module):
    for own in module.parameters():
        own.detach().numpy()[...] *= -3


def through_dlpack(module):
    for own in module.parameters():
        torch.from_dlpack(own.detach()).mul_(3)


def through_storage(module):
    for own in module.parameters():
        own.untyped_storage().copy_(torch.randn_like(own).contiguous().untyped_storage())


def loaded(module):
    module.load_state_dict({name: torch.randn_like(own) for name, own in module.state_dict().items()})


def assigned(module):
    module.load_state_dict({name: torch.randn_like(own) for name, own in module.state_dict().items()}, assign=True)


def swapped(module):
    for own in list(module.parameters()):
        torch.utils.swap_tensors(own, nn.Parameter(torch.randn_like(own)))


def from_vector(module):
    vector = parameters_to_vector(module.parameters()).detach()
    vector_to_parameters(torch.randn_like(vector), module.parameters())


def other_parameters(module):
    for place, own in enumerate(list(module.weights)):
        module.weights[place] = nn.Parameter(torch.randn_like(own))


def in_inference_mode(module):
    with torch.inference_mode():
        for own in module.parameters():
            own.mul_(-2)


def initialised(module):
    for own in module.parameters():
        nn.init.normal_(own)


def averaged(module):
    twin = copy.deepcopy(module)
    copied_to_data(twin)
    average = torch.optim.swa_utils.AveragedModel(twin)
    with torch.no_grad():
        for own, new in zip(module.parameters(), average.parameters(), strict=True):
            own.copy_(new)


def by_a_thread(module):
    thread = threading.Thread(target=through_data, args=(module,))
    thread.start()
    thread.join()


def by_a_thread_at_work(module):
    """Another thread writes while this one calls."""
    x, done = rows_of(module, 5, next(module.parameters()).dtype, False), threading.Event()

    def write():
        for _ in range(3):
            in_place(module)
            through_data(module)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    with torch.no_grad():
        while not done.is_set():
            result(module, x)
    thread.join()


def optimised(kind, **options):
    def write(module):
        steps = kind(module.parameters(), lr=0.5, **options)
        for _ in range(2):
            for own in module.parameters():
                own.grad = torch.randn_like(own)
            steps.step()

    return write


WRITES = {
    "in place": in_place, ".data": through_data, ".data.copy_": copied_to_data, ".data =": new_data,
    "numpy": through_numpy, "dlpack": through_dlpack, "storage": through_storage, "load_state_dict": loaded,
    "assign": assigned, "swap_tensors": swapped, "vector_to_parameters": from_vector, "parameters": other_parameters,
    "inference mode": in_inference_mode, "init": initialised, "average": averaged, "thread": by_a_thread,
    "thread at work": by_a_thread_at_work, "broadcast": broadcast, "all_reduce": all_reduce,
    **{
        f"{kind.__name__} {name}": optimised(kind, **{name: True})
        for kind in (torch.optim.SGD, torch.optim.Adam) for name in ("fused", "foreach")
    },
    "SGD": optimised(torch.optim.SGD, foreach=False), "Adam": optimised(torch.optim.Adam, foreach=False),
}  # fmt: skip
MODES = list(itertools.product((True, False), (True, False), (0, 1, 3)))  # training, recorded, calls before the write


def layers():
    """What makes each layer of the driver."""

    def sparse(chain, algorithm, batch_last, dtype):
        (a, _, c, d), (p, q, _, r) = chain[0], chain[-1]
        options = {"bias": dtype == torch.float32, "batch_last": batch_last, "algorithm": algorithm, "dtype": dtype}
        return km.KSLinear(a * c * d, p * q * r, chain, **options)

    for chain, algorithm, last in itertools.product(CHAINS, ALGORITHMS, (False, True)):
        dtype = torch.float64 if (len(algorithm) + last) % 2 else torch.float32
        yield (
            f"{chain}-{algorithm}-{'last' if last else 'first'}",
            lambda c=chain, a=algorithm, b=last, t=dtype: sparse(CHAINS[c], a, b, t),
        )
    for by, dtype in itertools.product(("left", "right", "linear", "operator"), (torch.float32, torch.float64)):
        yield f"kron-{by}", lambda by=by, dtype=dtype: Factors(by, dtype)


LAYERS = list(layers())


def run(make, write, training, recorded, calls, rows, seed):
    """Write to a layer after some calls: it follows, and what was made of it before does not."""
    torch.manual_seed(seed)
    layer = make().train(training)
    dtype = next(layer.parameters()).dtype
    packed = layer.pack() if isinstance(layer, km.KSLinear) else None
    before, like, count = values(layer), copy.deepcopy(layer), 0
    twin, shallow = copy.deepcopy(layer), copy.copy(layer)
    with torch.set_grad_enabled(recorded):
        for _ in range(calls):
            x = rows_of(layer, rows, dtype, recorded)
            for own in (layer, twin, shallow, *([packed] if packed else [])):
                result(own, x)
        write(layer)
        now = values(layer)
        assert any((now[name] != before[name]).any() for name in now), "nothing was written"
        for _ in range(2):
            x = rows_of(layer, rows, dtype, recorded)
            for own, held in ((layer, now), (shallow, None), (twin, before), (packed, before)):
                if own is not None:
                    check(own, x, values(shallow) if held is None else held, like)
                    count += 1
        other = {name: torch.randn_like(own) for name, own in layer.named_parameters()}
        held = {name: np.array(own.tolist(), dtype=np.float64) for name, own in other.items()}
        value, terms = expected(like, held, x)
        found = result(layer, x, other).detach()
        kind = "float32" if dtype == torch.float32 else "float64"
        assert_close(found, torch.from_numpy(value), dtype=kind, depth=512, magnitude=torch.from_numpy(terms))
        check(layer, x, now, like)
        if packed is not None:
            check(layer.pack(), x, now, like)
        wide = layer.double()
        check(wide, x.detach().double(), values(wide), like)
    return count + 3 + (packed is not None)


@pytest.mark.parametrize("write", WRITES)
def test_layers_follow_their_weights_and_snapshots_do_not(write):
    draw = random.Random(write)
    for place, (_, make) in enumerate(draw.sample(LAYERS, 5) + draw.sample(LAYERS[-8:], 2)):
        run(make, WRITES[write], *draw.choice(MODES), draw.choice(ROWS), place)


CASES = list(itertools.product(LAYERS, WRITES, MODES))
random.Random(0).shuffle(CASES)


def run_case(number):
    """One combination of all, in an order in which any range is a sample; how many checks there were.

    Numbers past the last combination take them again, with other numbers of rows and other random values.
    """
    (name, make), write, mode = CASES[number % len(CASES)]
    try:
        return run(make, WRITES[write], *mode, ROWS[number % 3], number)
    except Exception as error:
        raise AssertionError(f"{name}, {write}, {mode}: {error}") from error


@pytest.mark.exhaustive
def test_every_write_to_every_layer():
    assert sum(map(run_case, range(len(CASES)))) > 15_000


@pytest.mark.parametrize(
    "make", [lambda: km.kronsparse.hadamard(16), lambda: km.kronsparse.dct(12)], ids=["hadamard", "dct"]
)
@pytest.mark.parametrize("inference", [False, True])
def test_transforms_never_change(make, inference):
    with torch.inference_mode(inference):
        chain = make()
        matrix = chain.to_dense().double()
        for write in (
            lambda own: own.mul_(2),
            lambda own: own.data.zero_(),
            lambda own: own.detach().numpy().fill(3),
            lambda own: torch.from_dlpack(own.detach()).mul_(3),
        ):
            for x in (torch.randn(5, matrix.shape[1]), torch.randn(5, matrix.shape[1])):
                assert_close(chain(x), x.double() @ matrix.T, dtype="float32", depth=64)
            for own in (*chain.weights, chain.to_dense()):
                write(own)


class Stale(nn.Module):
    """What must be found: a layer that keeps the matrix of its first call until the version of a weight changes."""

    def __init__(self, layer: km.KSLinear) -> None:
        super().__init__()
        self.weights, self.bias = layer.weights, layer.bias
        self.patterns, self.in_features, self.batch_last = layer.patterns, layer.in_features, False
        self.kept = {}

    def forward(self, x):
        state = tuple(weight._version for weight in self.weights)
        if state not in self.kept:
            matrix = torch.eye(self.in_features)
            for pattern, weight in zip(self.patterns, self.weights, strict=True):
                matrix = pattern.to_dense(weight.detach()) @ matrix
            self.kept[state] = matrix
        return x @ self.kept[state].T + self.bias


@pytest.mark.parametrize("write", [".data", "numpy", "dlpack", "storage", "thread", "broadcast", "all_reduce"])
def test_a_layer_that_guesses_is_found(write):
    with pytest.raises(AssertionError):
        run(lambda: Stale(km.KSLinear(16, 16, CHAINS["square"])), WRITES[write], False, False, 1, 5, 0)


def test_no_module_guesses_whether_weights_changed():
    guesses = {"_version", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook"}
    for path in Path(km.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Attribute, ast.Name)):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                assert name not in guesses, f"{path}:{node.lineno} reads {name}"
