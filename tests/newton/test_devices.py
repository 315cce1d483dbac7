"""Batches on several devices, in processes of their own: sharded arguments under jit, shard_map, two processes."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import gnewt

jax.config.update("jax_enable_x64", True)
assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()), ("lanes",))
lanes = NamedSharding(mesh, P("lanes"))

def f(us, start):
    def stage(x, u):
        after = x + 0.1 * jnp.sin(x) + 0.1 * u
        return after, after**2 + 0.1 * u**2
    return jax.lax.scan(stage, start, us)[1].sum()

rng = np.random.default_rng(0)
us, starts = rng.normal(size=(8, 5)), rng.normal(size=8)
engine = "{engine}"
step = jax.vmap(gnewt.newton_step(f, engine=engine))
dense = jax.vmap(lambda u, s: -jnp.linalg.solve(jax.hessian(f)(u, s), jax.grad(f)(u, s)))
expected = dense(jnp.asarray(us), jnp.asarray(starts))
on_devices = jax.device_put((us, starts), lanes)

under_jit = jax.jit(step, out_shardings=lanes)(*on_devices)
assert np.allclose(under_jit, expected, rtol=1e-9, atol=1e-11)
assert under_jit.sharding.is_equivalent_to(lanes, 2)

mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("lanes"), out_specs=P("lanes"), check_vma=False))
found = mapped(*on_devices)
assert np.allclose(found, expected, rtol=1e-9, atol=1e-11)
assert {{s.data.shape for s in found.addressable_shards}} == {{(2, 5)}}
text = mapped.lower(*on_devices).compile().as_text()
assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all", "collective-permute"))

def solve(u, s):
    return gnewt.minimize(functools.partial(f, start=s), u, engine=engine).x

if engine == "native":
    minima = jax.jit(jax.shard_map(jax.vmap(solve), mesh=mesh, in_specs=P("lanes"), out_specs=P("lanes"), check_vma=False))
    alone = jax.jit(jax.vmap(solve))(jnp.asarray(us), jnp.asarray(starts))
    assert np.allclose(minima(*on_devices), alone, atol=1e-8)
print("well")
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "xla"])
def test_batches(engine):
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    program = textwrap.dedent(PROGRAM).format(engine=engine)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "well" in done.stdout, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes():
    example = pathlib.Path(__file__).parents[2] / "examples" / "distributed" / "two_processes.py"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(example), "--address", address, "--problems", "6", "--rank"]
    started = [
        subprocess.Popen([*command, rank], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    try:
        told = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], told
    lines = [out.splitlines()[-1] for out, _ in told]
    assert [line.split(":")[0] for line in lines] == ["process 0", "process 1"]
    assert all("12 problems, 6 of them here; 12 solved" in line for line in lines)
    assert lines[0].split("cost")[1] == lines[1].split("cost")[1]
