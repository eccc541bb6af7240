"""A program under torchrun on two nodes: ``python -m tests.distributed.nodes wire FOLDER program ...``.

Each node is a torchrun of its own, with a home, a cache and a folder of its own. They are two network namespaces with a
wire between them, or, for ``loopback``, share a network device and nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from .faults import FIRST, connected, forked, free_port, two_machines


def launched(rank, folder, program, endpoint, *options):
    """Run torchrun, and write what its process said."""
    own = Path(folder, f"node-{rank}")
    own.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ, "HOME": str(own), "TMPDIR": str(own), "KERNMANTLE_CACHE_DIR": str(own / "cache"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
            "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "fit", *options, *program,
        ],
        check=False, cwd=own, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (own / "said").write_text(done.stdout)
    (own / "errors").write_text(f"{done.returncode}\n{done.stderr}")


def on_wire(program, rank, wire, folder):
    """One node; the first one keeps the rendezvous, since no name says which machine has its address."""
    connected(rank, wire)
    options = ["--local-addr", f"{FIRST[:-1]}{rank + 1}", "--rdzv-conf", f"is_host={rank == 0}"]
    launched(rank, folder, program, f"{FIRST}:29400", *options)


def main(network, folder, *program):
    """Both nodes, until they have ended."""
    if network == "wire":
        processes = [forked(lambda: two_machines(folder, partial(on_wire, program)))]
    else:
        endpoint = f"127.0.0.1:{free_port()}"
        processes = [forked(lambda r=r: launched(r, folder, program, endpoint)) for r in range(2)]
    for process in processes:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
