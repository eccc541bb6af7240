"""CPUs: blocking and tiles, LLVM IR, the just-in-time compiler, threads."""
