"""Rollouts of MuJoCo's MJX: smooth models trace without opaque parts, and their steps are exact."""

import jax
import jax.numpy as jnp
import pytest

import gnewt

mujoco = pytest.importorskip("mujoco")
mjx = pytest.importorskip("mujoco.mjx")

pytestmark = pytest.mark.slow

FREE = '<option timestep="0.02"><flag contact="disable"/></option>'
ROD = '<geom type="capsule" fromto="0 0 0 {x} 0 {z}" size=".03" mass="{mass}"/>'
MODELS = {
    "pendulum": FREE
    + f"""<worldbody><body pos="0 0 1"><joint name="a" type="hinge" axis="0 1 0" damping=".1"/>
        {ROD.format(x=0, z=-0.5, mass=1)}</body></worldbody>
        <actuator><motor joint="a"/></actuator>""",
    "cartpole": FREE
    + f"""<worldbody><body pos="0 0 1"><joint name="a" type="slide" axis="1 0 0" damping=".05"/>
        <geom type="box" size=".1 .1 .05" mass="1"/><body>
        <joint type="hinge" axis="0 1 0" damping=".01"/>{ROD.format(x=0, z=0.6, mass=0.2)}</body></body></worldbody>
        <actuator><motor joint="a" gear="10"/></actuator>""",
    "arm": FREE
    + f"""<worldbody><body pos="0 0 1"><joint name="a" type="hinge" axis="0 1 0" damping=".1"/>
        {ROD.format(x=0.4, z=0, mass=1)}<body pos=".4 0 0"><joint name="b" type="hinge" axis="0 1 0" damping=".1"/>
        {ROD.format(x=0.4, z=0, mass=1)}</body></body></worldbody>
        <actuator><motor joint="a"/><motor joint="b"/></actuator>""",
}


def quadruped(contacts):
    legs = "".join(
        f"""<body pos="{x} {y} 0"><joint name="leg{x}{y}" type="hinge" axis="0 1 0" damping=".2"/>
        {ROD.format(x=0, z=-0.2, mass=0.1)}</body>"""
        for x in (0.18, -0.18)
        for y in (0.1, -0.1)
    )
    motors = "".join(f'<motor joint="leg{x}{y}"/>' for x in (0.18, -0.18) for y in (0.1, -0.1))
    flag = "" if contacts else '<flag contact="disable"/>'
    floor = '<geom type="plane" size="5 5 .1"/>' if contacts else ""
    return f"""<option timestep="0.01" iterations="2" ls_iterations="4">{flag}</option>
        <worldbody>{floor}<body pos="0 0 .22"><freejoint/><geom type="box" size=".2 .1 .04" mass="2"/>{legs}</body>
        </worldbody><actuator>{motors}</actuator>"""


def rollout(xml, length):
    """Return (objective, controls)."""
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{xml}</mujoco>")
    here = mjx.put_model(model)
    start = mjx.make_data(here)
    start = start.replace(qpos=start.qpos + 0.1)

    def cost(us):
        def step(data, u):
            data = mjx.step(here, data.replace(ctrl=u))
            return data, 0.1 * jnp.sum(data.qvel**2) + jnp.sum(data.qpos**2) + 0.01 * jnp.sum(u**2)

        return jax.lax.scan(step, start, us)[1].sum()

    return cost, 0.1 * jnp.ones((length, model.nu))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_smooth_model(name):
    f, us = rollout(MODELS[name], 6)
    graph = gnewt.trace_graph(f, us)
    states = 2 * (1 if name == "pendulum" else 2)
    assert not any(family.note for family in graph.families)
    assert max(family.k for family in graph.families) == states + us.shape[1]
    _, info = gnewt.newton_step(f, full_output=True)(us)
    assert info.residual < 1e-10


def test_the_cost_after_a_step_does_not_repeat_the_step():
    f, us = rollout(MODELS["cartpole"], 6)
    graph = gnewt.trace_graph(f, us)
    (loss,) = (family for family in graph.families if family.is_loss)
    args = [jax.ShapeDtypeStruct((loss.k,), us.dtype), *[jnp.asarray(d) for d in graph.data[graph.losses[0]]]]
    assert len(jax.make_jaxpr(loss.fn)(*args).eqns) < 100


def test_a_quadruped_without_contacts_is_a_chain():
    f, us = rollout(quadruped(contacts=False), 3)
    graph = gnewt.trace_graph(f, us)
    assert not any(family.note for family in graph.families)
    assert max(family.k for family in graph.families) == 11 + 10 + us.shape[1]


def test_iterations_of_the_contact_solver_have_no_reverse_mode():
    """JAX cannot differentiate them either: the number of iterations depends on data."""
    f, us = rollout(quadruped(contacts=True), 3)
    with pytest.raises(gnewt.TraceError, match="while"):
        gnewt.trace_graph(f, us)
