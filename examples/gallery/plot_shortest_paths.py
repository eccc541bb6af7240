"""
Shortest paths as a matrix power
================================

In the tropical algebra, where "plus" is the minimum and "times" is a sum, the product of a matrix of road lengths with
itself has the lengths of the shortest paths of two roads. Squaring it again and again gives all shortest paths. The
same lambda reduced by ``argmin`` says through which place they go.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import kernmantle as km

# %%
# A maze: a tree that joins all cells of a grid, found by a random walk that takes steps back, and some more openings.

height, width = 18, 30
random = np.random.default_rng(4)
roads = torch.full((height * width, height * width), torch.inf)
seen, stack, open_walls = {(0, 0)}, [(0, 0)], []


def around(row, column):
    """Cells beside a cell."""
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
    beside = around(*cell)
    open_walls.append((cell, beside[random.integers(len(beside))]))
for a, b in open_walls:
    i, j = a[0] * width + a[1], b[0] * width + b[1]
    roads[i, j] = roads[j, i] = 1.0
roads.fill_diagonal_(0)

# %%
# Ten squarings, each one fused pass over 540³ sums: paths of up to 1024 steps.

product = km.Contraction("ik,kj->ij", lambda a, b: a + b, reduce="min")
lengths = roads
for _ in range(10):
    lengths = product(lengths, lengths)
assert torch.equal(product(lengths, lengths), lengths)
print(product)

# %%
# The next place on every way is a neighbour for which road and rest are shortest.

first = km.Contraction("ik,kj->ij", lambda a, b: a + b, reduce="argmin")
onward = first(roads.masked_fill(torch.eye(len(roads), dtype=torch.bool), torch.inf), lengths)

start, goal = 0, height * width - 1
way = [start]
while way[-1] != goal:
    way.append(int(onward[way[-1], goal]))
assert len(way) - 1 == lengths[start, goal]

figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
shown = axes.imshow(lengths[start].reshape(height, width), cmap="YlGnBu")
openings = {frozenset(pair) for pair in open_walls}
for row in range(height):
    for column in range(width):
        if column + 1 < width and frozenset([(row, column), (row, column + 1)]) not in openings:
            axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color="#22313f", linewidth=1.5)
        if row + 1 < height and frozenset([(row, column), (row + 1, column)]) not in openings:
            axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color="#22313f", linewidth=1.5)
axes.plot([place % width for place in way], [place // width for place in way], color="#e07a2f", linewidth=3)
axes.set(xticks=[], yticks=[], title=f"{len(way) - 1} steps from one corner to the other")
figure.colorbar(shown, label="steps from the upper left corner", shrink=0.8)
plt.show()
