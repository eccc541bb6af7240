#!/usr/bin/env bash
# Times the whole table of contractions beside kermac and mm-kermac: gpu_contraction.sh OUT WHEELS [option of the bench ...]
# WHEELS/kermac holds the wheels of kermac 0.1.4 and cuda-core 0.4.2, WHEELS/mm-kermac those of mm-kermac 1.0, mm-ptx 1.0.1
# and cuda-core 0.5.0. A second run goes on where the first stopped.
set -uo pipefail
out=$(realpath -m "$1") wheels=$2
shift 2
mkdir -p "$out"
own="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
export CUDA_HOME PYTHONUNBUFFERED=1
peers=()
for name in kermac mm-kermac; do
    [ -d "$wheels/$name" ] || continue
    folder="$out/$name"
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$folder" "$wheels/$name"/*.whl
    ln -sfn "$CUDA_HOME"/include/* "$CUDA_HOME"/include/cccl/* "$folder/thirdparty/cutlass/include/"
    peers+=(--peer "$name=env PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH} python3")
done
PYTHONPATH=$own python3 -m benchmarks contraction --output "$out/h200-contraction.jsonl" "${peers[@]}" "$@"
