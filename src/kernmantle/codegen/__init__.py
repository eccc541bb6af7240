"""Plans to text: CUDA C++ and LLVM IR, and the reference evaluator."""
