"""The stored form of a fitted estimator: NumPy arrays, numbers and texts, which pickle, joblib and skops all take."""

from __future__ import annotations

from typing import Any

import torch

DEVICES = "_devices_of_tensors"


class Stored:
    """An object whose tensors are stored as NumPy arrays, and come back as tensors on the device they were on."""

    def __getstate__(self) -> dict[str, Any]:
        parent = getattr(super(), "__getstate__", None)
        state = dict((parent() if parent is not None else None) or vars(self))
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
        return {**state, **arrays, DEVICES: {name: str(value.device) for name, value in tensors.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = dict(state)
        for name, device in own.pop(DEVICES, {}).items():
            here = device if not device.startswith("cuda") or torch.cuda.is_available() else "cpu"
            own[name] = torch.as_tensor(own[name]).to(here)
        parent = getattr(super(), "__setstate__", None)
        if parent is not None:
            parent(own)
        else:
            self.__dict__.update(own)
