#!/usr/bin/env bash
# Everything that needs a GPU, in one go: tests, sanitizers, timings. Results go to the folder given first.
set -uo pipefail
out=${1:-gpu-results}
mkdir -p "$out"
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python3 -m tests.cuda.harness 2>&1 | tee "$out/harness.log" | grep -a -v '^ok '
python3 -m tests.cuda.kron_harness 2>&1 | tee "$out/kron.log" | grep -a -v ' ok$'
if [ "${SANITIZE:-1}" = 1 ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        echo "== $tool"
        timeout 150 compute-sanitizer --tool "$tool" python3 -m tests.cuda.harness ${CASES:-} >"$out/$tool.log" 2>&1
        tail -2 "$out/$tool.log"
        timeout 100 compute-sanitizer --tool "$tool" python3 -m tests.cuda.systems >"$out/$tool-systems.log" 2>&1
        tail -2 "$out/$tool-systems.log"
        timeout 150 compute-sanitizer --tool "$tool" python3 -m tests.cuda.kron_harness >"$out/$tool-kron.log" 2>&1
        tail -2 "$out/$tool-kron.log"
    done
    echo "== 200 random maps"
    timeout 200 compute-sanitizer --tool memcheck python3 -m tests.cuda.lambdas >"$out/lambdas.log" 2>&1
    tail -2 "$out/lambdas.log"
fi
if [ -n "${TIMES:-}" ]; then
    # shellcheck disable=SC2086
    timeout 300 python3 scripts/gpu_gram.py --out "$out/rows.jsonl" $TIMES
fi
