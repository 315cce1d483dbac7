"""Importing this module, before any other, holds the process to one core and every library to one thread.

`GNEWT_BENCH_CORES` gives the process so many cores instead, and XLA as many threads.
`GNEWT_ISA=avx2` holds gnewt, XLA, MKL and OpenBLAS to AVX2; without it each takes the best that it knows.
"""

import os

for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
    os.environ[f"{name}_NUM_THREADS"] = "1"
cores = int(os.environ.get("GNEWT_BENCH_CORES", "1"))
flags = ["--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"] if cores == 1 else []
if os.environ.get("GNEWT_ISA") == "avx2":
    flags.append("--xla_cpu_max_isa=AVX2")
    os.environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    os.environ["OPENBLAS_CORETYPE"] = "Haswell"
os.environ["XLA_FLAGS"] = " ".join(flags)
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-cores:]))
