"""A batch of problems shared by two processes, on one machine or on two.

Each process holds half of the problems, and solves its half; only the summary crosses. Start both, in either order:

    python examples/distributed/two_processes.py --rank 0 &
    python examples/distributed/two_processes.py --rank 1

On two machines: `--address HOST:PORT` of the first one. If one process dies the other ends with JAX's error.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gnewt

jax.config.update("jax_enable_x64", True)


def cost(us, start):
    """A pendulum that is to hang still."""

    def stage(x, u):
        after = x + 0.1 * jnp.stack([x[1], u - jnp.sin(x[0])])
        return after, jnp.sum(after**2) + 0.1 * u**2

    return jax.lax.scan(stage, start, us)[1].sum()


def solve(start):
    res = gnewt.minimize(cost, jnp.zeros(30), (start,), max_steps=30)
    return res.x, res.fun, res.success


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--address", default="localhost:12765")
    parser.add_argument("--problems", type=int, default=64, help="of each process")
    args = parser.parse_args()

    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # GPUs take NCCL by themselves
    jax.distributed.initialize(args.address, args.processes, args.rank)
    mesh = Mesh(np.array(jax.devices()), ("lanes",))
    lanes = PartitionSpec("lanes")

    mine = np.random.default_rng(args.rank).normal(size=(args.problems, 2))
    starts = jax.make_array_from_process_local_data(NamedSharding(mesh, lanes), mine)
    run = jax.jit(jax.shard_map(jax.vmap(solve), mesh=mesh, in_specs=lanes, out_specs=lanes, check_vma=False))
    us, values, success = run(starts)

    rows = sum(shard.data.shape[0] for shard in us.addressable_shards)
    solved, mean = jax.jit(lambda s, v: (s.sum(), v.mean()))(success, values)  # the only numbers that cross
    print(
        f"process {args.rank}: {len(starts)} problems, {rows} of them here; {int(solved)} solved, mean cost "
        f"{float(mean):.6f}"
    )


if __name__ == "__main__":
    main()
