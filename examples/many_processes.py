"""Kernel ridge regression over several processes, on GPUs or CPUs, that continues from its checkpoint.

    torchrun --standalone --nproc-per-node 2 examples/many_processes.py --checkpoint fit.pt

Without torchrun it is a group of one process. Every process makes its own share of the rows.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import kernmantle as km

KERNEL, RIDGE, SEED = km.Gaussian(1.0), 1e-1, 7


def rows(total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows and their targets."""
    source = torch.Generator().manual_seed(SEED)
    x = torch.randn(total, 3, generator=source, dtype=torch.float64)
    return x, x.sum(1).sin() + 0.1 * torch.randn(total, generator=source, dtype=torch.float64)


def join(folder: str) -> torch.device:
    """Join the group that torchrun describes, or one of this process alone; return the device of this process."""
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    alone = {} if "RANK" in os.environ else {"init_method": f"file://{folder}/store", "rank": 0, "world_size": 1}
    dist.init_process_group(kind, timeout=timedelta(minutes=5), **alone)
    if kind == "gloo":
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda")


def main() -> None:
    """Fit, and print what the first process knows of all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--checkpoint", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        device = join(folder)
        share = slice(dist.get_rank(), None, dist.get_world_size())
        x, y = (part[share].to(device) for part in rows(asked.rows))
        operator = km.distributed.operator(KERNEL, x, diagonal=RIDGE)
        approximate = km.distributed.nystrom(KERNEL, x, 100, RIDGE)
        found = km.distributed.cg(
            operator, y, preconditioner=approximate, tolerance=1e-8, checkpoint=asked.checkpoint, every=5
        )
        gap = (km.distributed.matmul(KERNEL, x, None, found.x) + RIDGE * found.x - y).square().sum()
        dist.all_reduce(gap)
        if dist.get_rank() == 0:
            print(
                f"{dist.get_world_size()} processes, {asked.rows} rows: {found.iterations} iterations, "
                f"residual {float(found.residual):.1e}, length of y - (K + ridge I) c {float(gap.sqrt()):.1e}"
            )
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
