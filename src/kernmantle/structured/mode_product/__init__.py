"""Products Y[n, i, j, l] = Σ_k W[i, j, k, l] X[n, i, k, l] with one Kronecker-sparse factor, and gradients of W."""
