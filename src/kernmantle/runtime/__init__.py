"""The cache of compiled kernels, the store of loaded ones, and the dispatch of calls; independent of contractions."""
