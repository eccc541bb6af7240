"""What happens to a group when one of its processes is killed, raises or hangs, or the network between two is cut.

Every scenario is a group of its own. Its members are forked, share nothing but the address at which they meet, and
have a folder each. Process 1 fails; process 0 writes down what it saw. ``python -m tests.distributed.faults FOLDER
cuda`` is the same with NCCL on two GPUs, without the network.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import kernmantle as km
from kernmantle import distributed as spread

TIMEOUTS = {"cpu": 3, "cuda": 10}
"""Of the groups, in seconds; processes on GPUs meet later."""
DEVICE = "cuda" if "cuda" in sys.argv[2:] else "cpu"
N, COLUMNS, RIDGE = 60, 2, 0.1
KERNEL = km.Matern(0.3, 1.5)
PHASES = ("before", "during", "after")
MANNERS = ("killed", "raised", "hung")
NAMESPACES = "cut"
FIRST = "10.77.0.1"
"""Address of the first of two network namespaces."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def whole():
    source = torch.Generator().manual_seed(3)
    x = torch.rand(N, COLUMNS, generator=source, dtype=torch.float64)
    return x, torch.sin(5 * x.sum(1)) + 0.1 * torch.randn(N, generator=source, dtype=torch.float64)


def mine():
    half = slice(0, 25) if dist.get_rank() == 0 else slice(25, N)
    return tuple(t[half].clone().to(DEVICE) for t in whole())


def fail(manner):
    if manner == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if manner == "raised":
        raise RuntimeError("as a program's own error would be")
    time.sleep(60)


class FailsAtShard:
    """Not a kernel of its own: what passes for one in a product, and fails at the second shard."""

    def __init__(self, manner):
        self.manner, self.calls = manner, 0

    def matmul(self, x, y, v):
        self.calls += 1
        if self.calls == 2:
            fail(self.manner)
        return KERNEL.matmul(x, y, v)


def collective(name, folder):
    """One process fails before, within or after a product that all take part in."""
    phase, manner = name.split("-")
    x, y = mine()
    before, survivor = (x.clone(), y.clone()), dist.get_rank() == 0
    spread.matmul(KERNEL, x, None, y)
    begin = time.monotonic()
    try:
        if not survivor and phase == "before":
            fail(manner)
        spread.matmul(KERNEL if survivor or phase != "during" else FailsAtShard(manner), x, None, y)
        if not survivor:
            fail(manner)
        begin = time.monotonic()
        spread.matmul(KERNEL, x, None, y)
    except km.errors.WorkerError as error:
        told(folder, error=str(error), seconds=time.monotonic() - begin, same=same(before, (x, y)))


def same(before, now):
    return all(torch.equal(a, b) for a, b in zip(before, now, strict=True))


def told(folder, **what):
    Path(folder, "report.json").write_text(json.dumps(what))


def fit(folder, **options):
    x, y = mine()
    own = Path(folder, f"disk-{dist.get_rank()}")
    own.mkdir(exist_ok=True)
    a = spread.operator(KERNEL, x, diagonal=RIDGE)
    return spread.cg(a, y, tolerance=1e-10, checkpoint=own / "fit.pt", every=4, **options), y, a


def resumed(name, folder):
    """Process 1 is killed in iteration 25, or while its sixth checkpoint is written; a second group goes on."""
    second, survivor = name.endswith("-again"), dist.get_rank() == 0
    if not second and not survivor:
        if "writing" in name:
            saved, calls = torch.save, []

            def save(state, file):
                calls.append(1)
                if len(calls) == 6:
                    file.write(b"half of a state")
                    file.flush()
                    fail("killed")
                saved(state, file)

            torch.save = save
        else:
            product, calls = spread.Operator.__matmul__, []

            def multiply(self, v):
                calls.append(1)
                return fail("killed") if len(calls) == 25 else product(self, v)

            spread.Operator.__matmul__ = multiply
    begin = time.monotonic()
    try:
        found, y, a = fit(folder)
    except km.errors.WorkerError as error:
        told(folder, error=str(error), seconds=time.monotonic() - begin, same=True)
        return
    gap = y - a @ found.x
    total = torch.stack([gap.square().sum(), y.square().sum()])
    dist.all_reduce(total)
    cold = spread.cg(a, y, tolerance=1e-10)
    if survivor:
        told(
            folder, residual=float((total[0] / total[1]).sqrt()), iterations=found.iterations,
            start=float(found.history[0]), converged=bool(found.converged), cold=cold.iterations,
        )  # fmt: skip


def lost(_, folder):
    """Both fit; then the files of process 1 are gone, or of another problem: all processes hear of it."""
    fit(folder)
    survivor, own = dist.get_rank() == 0, Path(folder, f"disk-{dist.get_rank()}")
    said = []
    for change in ("damaged", "lost"):
        if not survivor:
            for file in own.iterdir():
                file.write_bytes(b"nothing") if change == "damaged" else file.unlink()
        try:
            fit(folder)
        except km.errors.CheckpointError as error:
            said.append(str(error))
    everyone = [None, None]
    dist.all_gather_object(everyone, said)
    if survivor:
        told(folder, said=everyone)


def partitioned(_, folder):
    """Two machines whose cable is pulled while both are at work: nobody ends, and nothing is closed."""
    x, y = mine()
    begin = time.monotonic()
    try:
        for step in range(10**9):
            spread.matmul(KERNEL, x, None, y)
            if step == 3 and dist.get_rank() == 1:
                subprocess.run(["ip", "link", "set", "between1", "down"], check=True)
                begin = time.monotonic()
    except km.errors.WorkerError as error:
        Path(folder, f"report-{dist.get_rank()}.json").write_text(
            json.dumps({"error": str(error), "seconds": time.monotonic() - begin})
        )


SCENARIOS = {f"{phase}-{manner}": collective for phase in PHASES for manner in MANNERS}
AGAIN = ("resume", "resume-writing")
SCENARIOS |= {"resume": resumed, "resume-writing": resumed, "lost": lost}


def member(name, function, folder, rank, address):
    """One process of a group, as torchrun would start it: it knows an address, its rank and how many there are."""
    os.environ["TMPDIR"] = str(folder)
    torch.set_num_threads(1)
    kind, options = "gloo", {}
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
        kind, options = "nccl", {"device_id": torch.device("cuda", rank)}
        km.set_config(wait_on_host=True)
    dist.init_process_group(
        kind, init_method=f"tcp://{address}", rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUTS[DEVICE]),
        **options,
    )  # fmt: skip
    function(name, str(folder))


def forked(body):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        body()
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(name, function, folder):
    folder.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    return [forked(lambda r=r: member(name, function, folder, r, address)) for r in range(2)]


def unshare(flags):
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def connected(rank, wire):
    """Give this process a network of its own; its end of the wire is moved into it."""
    unshare(CLONE_NEWNET)
    wire["there"].send(b"1")
    wire["ready"].recv(1)
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"10.77.0.{rank + 1}/24", "dev", f"between{rank}")
    ip("link", "set", f"between{rank}", "up")
    os.environ["GLOO_SOCKET_IFNAME"] = f"between{rank}"


def node(rank, wire, folder):
    connected(rank, wire)
    member(NAMESPACES, partitioned, folder, rank, f"{FIRST}:29400")


def two_machines(folder, node=node):
    """Two network namespaces with one wire between them, of which a user namespace is the root."""
    user, group = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    here, there = zip(*(socket.socketpair() for _ in range(4)), strict=True)
    ip("link", "add", "between0", "type", "veth", "peer", "name", "between1")
    members = []
    for rank in range(2):
        wire = {"there": there[rank], "ready": there[2 + rank]}
        members.append(forked(lambda r=rank, w=wire: node(r, w, folder)))
        here[rank].recv(1)
        ip("link", "set", f"between{rank}", "netns", str(members[-1]))
    for rank in range(2):
        here[2 + rank].send(b"1")
    for process in members:
        os.waitpid(process, 0)


def permitted():
    """Whether this machine lets a user have network namespaces."""
    if not shutil.which("ip"):
        return False
    child = forked(lambda: unshare(CLONE_NEWUSER | CLONE_NEWNET))
    return os.waitpid(child, 0)[1] == 0


def ended(groups):
    """Wait for all first processes, and end the second ones."""
    for first, second in groups:
        os.waitpid(first, 0)
        if os.waitpid(second, os.WNOHANG) == (0, 0):
            os.kill(second, signal.SIGKILL)
            os.waitpid(second, 0)


def main(folder, *_):
    """Run all groups at once; survivors end by themselves, what hangs is killed then."""
    folder = Path(folder)
    torch.set_num_threads(1)
    x, y = whole()
    KERNEL.matmul(x[:25], x[25:], y[25:])
    groups = {name: start(name, function, folder / name) for name, function in SCENARIOS.items()}
    network = forked(lambda: two_machines(folder / NAMESPACES)) if DEVICE == "cpu" and permitted() else None
    if network:
        (folder / NAMESPACES).mkdir()
    ended([groups.pop(name) for name in AGAIN])
    groups |= {f"{name} again": start(f"{name}-again", resumed, folder / name) for name in AGAIN}
    ended(groups.values())
    if network:
        os.waitpid(network, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
