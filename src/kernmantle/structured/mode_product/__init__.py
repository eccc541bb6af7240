"""Y[n, i, j, l] = Σ_k W[i, j, k, l] X[n, i, k, l]: a factor of a Kronecker-sparse matrix, its weights' gradient."""
