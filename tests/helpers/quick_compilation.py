"""Settings of processes that compile thousands of small programs and run each a few times. Loads neither JAX nor NumPy."""

_XLA_FLAGS = (
    "--xla_cpu_multi_thread_eigen=false",
    "intra_op_parallelism_threads=1",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
ENVIRONMENT = {
    # With several workers, each would otherwise start a pool as wide as the machine.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Compile quickly, not well.
    "XLA_FLAGS": " ".join(_XLA_FLAGS),
    "JAX_PLATFORMS": "cpu",
}
"""Environment variables, to be set before JAX and NumPy load."""

CACHE = {
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""Settings of JAX under which every program is kept in the folder `jax_compilation_cache_dir`."""
