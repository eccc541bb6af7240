"""``pykeops.config``: what programs ask before they choose a device."""

from __future__ import annotations

import torch

numpy_found = torch_found = True
gpu_available = use_cuda = torch.cuda.is_available()
