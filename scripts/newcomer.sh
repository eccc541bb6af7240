#!/bin/sh
# From nothing to a model fitted to one's own table, as README.md says it for a machine without a GPU: scripts/newcomer.sh
# FOLDER. Prints the seconds of each step; FOLDER must not exist.
set -eu
checkout=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?usage: scripts/newcomer.sh FOLDER}
mkdir "$folder"
folder=$(cd "$folder" && pwd)
cd "$folder"
unset PYTHONPATH
export KERNMANTLE_CACHE_DIR="$folder/cache"
begin=$(date +%s)
step() {
    now=$(date +%s)
    printf '%-28s %4d s\n' "$1" $((now - begin))
    begin=$now
}
git clone -q "$checkout" kernmantle
python3 -m venv environment
step "clone and environment"
environment/bin/pip install -q --constraint kernmantle/constraints-cpu.txt torch ||
    environment/bin/pip install -q torch --index-url https://download.pytorch.org/whl/cpu
step "torch without CUDA"
environment/bin/pip install -q './kernmantle[sklearn]'
step "kernmantle with sklearn"
environment/bin/python - <<'PROGRAM'
import numpy as np
from sklearn.datasets import load_diabetes

table = load_diabetes()
np.savetxt("my.csv", np.column_stack([table.data, table.target]), delimiter=",", header="ten columns and the target")
PROGRAM
step "a table of one's own"
environment/bin/python - <<'PROGRAM'
import numpy as np

import kernmantle as km
from kernmantle.estimators import KernelRidge

table = np.loadtxt("my.csv", delimiter=",", skiprows=1)
x, y = km.standardise(table[:, :-1]), table[:, -1]
kernel = km.Kernel(lambda a, b: abs(a - b), lambda s, width: km.exp(-s / width), width=4.0)
model = KernelRidge(alpha=0.1, kernel=kernel).fit(x[:350], y[:350])
score = model.score(x[350:], y[350:])
print(f"share of the variance that is explained: {score:.2f}")
assert score > 0.4
PROGRAM
step "first fit and prediction"
