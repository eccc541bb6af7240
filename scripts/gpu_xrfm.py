"""xrfm on its own kernels, on ours through kermac's names, and the same job on ours alone: one JSON row."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from examples import xrfm_covertype_style as example
from kernmantle.bench import machine

WARM_ROWS = 2500
FORMS = {"xrfm, own kernel": "ProductLaplaceKernel", "xrfm, ours": "KermacProductLaplaceKernel"}


def scores(name: str, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Scores of the held rows by one of the ways."""
    x, y, held, truth = given
    if name not in FORMS:
        return example.ours(x, y, held)
    kernel = getattr(example.theirs, FORMS[name])(bandwidth=example.BANDWIDTH, exponent=1.0)
    return example.with_xrfm(kernel, x, y, held, truth)


def main(arguments: list[str]) -> None:
    """Warm up on few rows, then measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    given = example.table(options.rows, options.device)
    results: dict[str, Any] = {}
    for name in (*FORMS, "this library"):
        scores(name, example.table(min(options.rows, WARM_ROWS), options.device))
        begun = torch.cuda.memory_allocated() if options.device == "cuda" else 0
        found, seconds, gigabytes = example.timed(options.device, lambda name=name: scores(name, given))
        truth = given[3].cpu()
        results[name] = {
            "status": "ok", "median": seconds, "samples": 1, "bytes": int(gigabytes * 1e9) - begun,
            "right": float(((found > 0.5) == (truth > 0.5)).float().mean()),
            "mse": float((found - truth).square().mean()),
        }  # fmt: skip
        sys.stdout.write(f"{name} {results[name]}\n")
        sys.stdout.flush()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    row = {
        "case": f"xrfm {options.rows} rows", "suite": "xrfm", "status": "ok",
        "title": f"feature learning, {options.rows * 4 // 5} x 54, {example.ROUNDS} rounds",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "results": results,
        "stamp": machine.stamp(options.device),
    }  # fmt: skip
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
