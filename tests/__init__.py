"""All tests of gpupack. A package, so that tests and benchmarks can share `tests.cluster.harness`."""
