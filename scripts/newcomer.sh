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
import csv

import numpy as np
from sklearn.datasets import load_diabetes

table = load_diabetes()
np.savetxt("my.csv", np.column_stack([table.data, table.target]), delimiter=",", header="ten columns and the target")
random = np.random.default_rng(0)
with open("prices.csv", "w", newline="") as file:
    lines = csv.writer(file)
    lines.writerow(["district", "area", "rooms", "price"])
    for row in range(400):
        district, area, rooms = random.choice(["harbour", "hill, east"]), random.uniform(30, 150), random.integers(1, 6)
        price = area * (4 if district == "harbour" else 3) + 10 * rooms + random.normal(0, 5)
        lines.writerow([district, f"{area:.1f}", "" if row % 20 == 0 else rooms, f"{price:.1f}"])
PROGRAM
step "two tables"
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
environment/bin/python - <<'PROGRAM'
import csv

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from kernmantle.estimators import KernelRidge

with open("prices.csv", newline="") as file:
    table = np.array(list(csv.reader(file))[1:], dtype=object)
table[table == ""] = np.nan
columns = make_column_transformer(
    (OneHotEncoder(), [0]), (make_pipeline(SimpleImputer(), StandardScaler()), [1, 2])
)
model = make_pipeline(columns, KernelRidge(alpha=0.01, kernel="laplace")).fit(table[:300, :3], table[:300, 3].astype(float))
score = model.score(table[300:, :3], table[300:, 3].astype(float))
print(f"share of the variance that is explained: {score:.2f}")
assert score > 0.9
PROGRAM
step "a table with text and gaps"
