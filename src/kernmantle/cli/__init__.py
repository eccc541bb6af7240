"""The command line: a table of commands, each loaded only when it is called.

A command is a module with ``main(arguments) -> int``; adding one is adding a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from .._version import __version__
from ..errors import KernmantleError

COMMANDS = {
    "demo": ("kernmantle.cli.demo", "kernel regression and nearest neighbours on real data"),
    "info": ("kernmantle.cli.info", "versions, devices, what works on this machine, and checks of results"),
    "bench": ("kernmantle.cli.bench", "benchmarks against other libraries, in a clone of the repository"),
    "cache": ("kernmantle.cli.cache", "list, prune, clear, export or import the compiled kernels"),
    "inspect": ("kernmantle.cli.inspect", "how a map is compiled: expression, derivatives, plans, sources"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``kernmantle <command> ...``; returns the exit status."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        "kernmantle",
        description="Fast distances, kernel matrices and structured linear layers for PyTorch and NumPy.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()),
    )
    parser.add_argument("--version", action="version", version=f"kernmantle {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of the commands below")
    if not command_line:
        parser.print_help(sys.stderr)
        return 2
    command = parser.parse_args(command_line[:1]).command
    try:
        return import_module(COMMANDS[command][0]).main(command_line[1:])
    except KernmantleError as error:
        print(f"kernmantle {command}: {error}", file=sys.stderr)
        return 1
