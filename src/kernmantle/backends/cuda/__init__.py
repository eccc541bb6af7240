"""NVIDIA GPUs: tiles and plans, CUDA C++ around the templates of ``kernels``, NVRTC, launches."""
