#!/usr/bin/env bash
# Everything that needs a GPU: scripts/gpu.sh FOLDER [STEP ...], from the root of a checkout. Logs and rows go to FOLDER,
# FOLDER/summary.txt says what passed, and the exit status is 1 if a step failed. Needs no network and no installed package.
#
#   tests       tests/cuda by pytest; none may be skipped     PART=1/3 for a third of the files, PYTEST_ARGS="-k kron"
#   kernels     kernels against numpy, without torch          HARNESSES="harness row_harness", CASES="l1 signs"
#   sanitizers  the same under compute-sanitizer, and tests     TOOLS="memcheck racecheck", HARNESSES, CASES, SANITIZED
#   rows        rows of the benchmark                         SUITES="host-cuda kron", BENCH_ARGS="--seconds 1"
#   compare     warm calls beside those of a checkout BASE    BASE=../base, COMPARE_ARGS="--clock host"
#
# Without a STEP: tests, sanitizers, rows. LIMIT (540) is the longest time of one command in seconds. PYTHON (python3) has
# torch; what else it lacks (pytest, hypothesis, llvmlite, cuda-core, ...) may lie as wheels in a folder WHEELS.
set -uo pipefail
out=$(realpath -m "${1:?usage: scripts/gpu.sh FOLDER [tests|kernels|sanitizers|rows|compare ...]}")
shift
[ $# -gt 0 ] || set -- tests sanitizers rows
python=${PYTHON:-python3} limit=${LIMIT:-540}
mkdir -p "$out"
if [ -n "${WHEELS:-}" ]; then
    site=${TMPDIR:-/tmp}/kernmantle-site
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$WHEELS"/*.whl
    PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
harnesses=${HARNESSES:-harness row_harness vjp_harness kron_harness kronsparse_harness kronsparse_grouped_harness kronsparse_stream_harness systems lambdas}
sanitized=${SANITIZED:-tests/cuda/test_kronsparse_cluster.py}  # tests of kernels that have no harness
failed=0

# run NAME COMMAND ...: run a command under the limit, its output in FOLDER/NAME.log, and note how it ended
run() {
    local name=$1 begin=$SECONDS status
    shift
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    case $status in
    0) status=ok ;;
    124) status="FAILED: longer than $limit s" ;;
    *) status="FAILED with $status" ;;
    esac
    [ "$status" = ok ] || failed=1
    printf '%-45s %4d s  %s\n' "$name" $((SECONDS - begin)) "$status" | tee -a "$out/summary.txt"
    [ "$status" = ok ] || tail -n 15 "$out/$name.log"
}

tests() {
    local part=${PART:-1/1} files=() chosen=() place
    files=(tests/cuda/test_*.py)
    for place in "${!files[@]}"; do
        [ $((place % ${part#*/} + 1)) -eq "${part%/*}" ] && chosen+=("${files[place]}")
    done
    # shellcheck disable=SC2086
    run "tests-${part/\//-of-}" "$python" -m pytest -q --require=cuda -p no:cacheprovider "${chosen[@]}" ${PYTEST_ARGS:-}
}

# kernels PREFIX [COMMAND ...]: every harness, behind a command that is given, such as a sanitizer
kernels() {
    local prefix=$1 name
    shift
    for name in $harnesses; do
        # shellcheck disable=SC2086
        run "$prefix-$name" "$@" "$python" -m "tests.cuda.$name" ${CASES:-}
    done
}

for step in "$@"; do
    case $step in
    tests) tests ;;
    kernels) kernels kernels ;;
    sanitizers)
        for tool in ${TOOLS:-memcheck racecheck initcheck}; do
            kernels "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9
            # Every tensor in memory of its own, so that memcheck sees what is read beside it; torch asks for functions that
            # a driver may not have, which are no errors. Memory that is not cached cannot be had while a graph is captured.
            # shellcheck disable=SC2086
            run "$tool-tests" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                --report-api-errors no \
                "$python" -m pytest -q --require=cuda -p no:cacheprovider -k "not follow_one_another" $sanitized
        done
        ;;
    rows)
        for suite in ${SUITES:-host-cuda}; do
            # shellcheck disable=SC2086
            run "rows-$suite" "$python" -m benchmarks "$suite" --output "$out/$suite.jsonl" ${BENCH_ARGS:-}
        done
        ;;
    compare)
        # shellcheck disable=SC2086
        run compare "$python" scripts/compare_speed.py "${BASE:?a checkout to compare with}" . --device cuda ${COMPARE_ARGS:-}
        cat "$out/compare.log"
        ;;
    *)
        echo "there is no step $step: tests, kernels, sanitizers, rows, compare" >&2
        exit 2
        ;;
    esac
done
exit $failed
