"""
Shortest paths as a matrix power
================================

In the tropical semiring, addition is the minimum and multiplication is the sum. The product of a matrix of road
lengths with itself then contains the shortest paths of at most two roads, and repeated squaring gives all shortest
paths. With ``argmin`` as the reduction, the same lambda gives the intermediate nodes.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import kernmantle as km

# %%
# A maze: a spanning tree of a grid, found by a random walk with backtracking, and some additional openings.

height, width = 18, 30
random = np.random.default_rng(4)
roads = torch.full((height * width, height * width), torch.inf)
seen, stack, open_walls = {(0, 0)}, [(0, 0)], []


def around(row, column):
    """Return the neighbours of a cell."""
    steps = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
    return [(r, c) for r, c in steps if 0 <= r < height and 0 <= c < width]


while stack:
    fresh = [cell for cell in around(*stack[-1]) if cell not in seen]
    if not fresh:
        stack.pop()
        continue
    cell = fresh[random.integers(len(fresh))]
    open_walls.append((stack[-1], cell))
    seen.add(cell)
    stack.append(cell)
for _ in range(25):
    cell = (int(random.integers(height)), int(random.integers(width)))
    neighbours = around(*cell)
    open_walls.append((cell, neighbours[random.integers(len(neighbours))]))
for a, b in open_walls:
    i, j = a[0] * width + a[1], b[0] * width + b[1]
    roads[i, j] = roads[j, i] = 1.0
roads.fill_diagonal_(0)

# %%
# Ten squarings give paths of up to 1024 steps. Each is one fused pass over 540³ sums.

product = km.Contraction("ik,kj->ij", lambda a, b: a + b, reduce="min")
lengths = roads
for _ in range(10):
    lengths = product(lengths, lengths)
assert torch.equal(product(lengths, lengths), lengths)
print(product)

# %%
# The next cell of a shortest path is the neighbour that minimises the step plus the remaining distance.

first = km.Contraction("ik,kj->ij", lambda a, b: a + b, reduce="argmin")
onward = first(roads.masked_fill(torch.eye(len(roads), dtype=torch.bool), torch.inf), lengths)

start, goal = 0, height * width - 1
path = [start]
while path[-1] != goal:
    path.append(int(onward[path[-1], goal]))
assert len(path) - 1 == lengths[start, goal]

figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
shown = axes.imshow(lengths[start].reshape(height, width), cmap="YlGnBu")
openings = {frozenset(pair) for pair in open_walls}
for row in range(height):
    for column in range(width):
        if column + 1 < width and frozenset([(row, column), (row, column + 1)]) not in openings:
            axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color="#22313f", linewidth=1.5)
        if row + 1 < height and frozenset([(row, column), (row + 1, column)]) not in openings:
            axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color="#22313f", linewidth=1.5)
axes.plot([cell % width for cell in path], [cell // width for cell in path], color="#e07a2f", linewidth=3)
axes.set(xticks=[], yticks=[], title=f"{len(path) - 1} steps from one corner to the other")
figure.colorbar(shown, label="steps from the upper left corner", shrink=0.8)
plt.show()
