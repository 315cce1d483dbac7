"""Optimal control problems, written once for JAX and for casadi: a cartpole that swings up, a quadrotor that moves over.

`lib` is `jax.numpy` or `casadi`; states and inputs are sequences of scalars. One Runge–Kutta step of fourth order per stage.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnewt

Flow = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True)
class Problem:
    """An optimal control problem over `duration` seconds."""

    name: str
    nx: int
    nu: int
    duration: float
    flow: Flow
    """(lib, x, u) ↦ ẋ."""
    weight_x: tuple[float, ...]
    """Weight of (x - goal)² along the way, per second ..."""
    weight_u: float
    weight_final: tuple[float, ...]
    """... and at the end."""
    start: tuple[float, ...]
    goal: tuple[float, ...]
    rest: tuple[float, ...]
    """Inputs that cost nothing."""
    guess: Callable[[np.ndarray], np.ndarray]
    """times[T] ↦ inputs[T, nu]."""

    def first_inputs(self, T: int) -> np.ndarray:
        return self.guess(np.arange(T) * self.duration / T)

    def stage_cost(self, x: Sequence[Any], u: Sequence[Any], dt: float) -> Any:
        away = sum(w * (x[i] - self.goal[i]) ** 2 for i, w in enumerate(self.weight_x) if w)
        return dt * (away + self.weight_u * sum((u[i] - self.rest[i]) ** 2 for i in range(self.nu)))

    def final_cost(self, x: Sequence[Any]) -> Any:
        return sum(w * (x[i] - self.goal[i]) ** 2 for i, w in enumerate(self.weight_final))


def runge_kutta(flow: Callable[[Any], Any], x: Any, dt: float) -> Any:
    k1 = flow(x)
    k2 = flow(x + dt / 2 * k1)
    k3 = flow(x + dt / 2 * k2)
    k4 = flow(x + dt * k3)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def jax_stage(problem: Problem, T: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """(x, u) ↦ (next x, cost) as JAX arrays."""
    dt = problem.duration / T

    def stage(x: Any, u: Any) -> tuple[Any, Any]:
        new = runge_kutta(lambda x: jnp.stack(problem.flow(jnp, x, u)), x, dt)
        return new, problem.stage_cost(x, u, dt)

    return stage


def jax_cost(problem: Problem, T: int) -> Callable[[Any], Any]:
    """The objective as a plain JAX function of the inputs us[T, nu]."""
    stage = jax_stage(problem, T)

    def cost(us: Any) -> Any:
        x, costs = jax.lax.scan(stage, jnp.array(problem.start), us)
        return costs.sum() + problem.final_cost(x)

    return cost


def graph(problem: Problem, T: int) -> gnewt.Graph:
    """The same objective as a graph by hand: one dense family for the dynamics, one for the costs."""
    dt = problem.duration / T
    g = gnewt.Graph()
    us = [g.input((problem.nu,), name=f"u{t}") for t in range(T)]
    x = g.constant(np.array(problem.start))

    def dynamics(x: Any, u: Any) -> Any:
        return runge_kutta(lambda x: jnp.stack(problem.flow(jnp, x, u)), x, dt)

    def cost(x: Any, u: Any) -> Any:
        return problem.stage_cost(x, u, dt)

    for t in range(T):
        g.loss(cost, x, us[t])
        x = g.node(dynamics, x, us[t])
    g.loss(problem.final_cost, x)
    return g


def rollout(problem: Problem, us: np.ndarray) -> np.ndarray:
    """States x[T + 1, nx] under the inputs."""
    stage = jax_stage(problem, len(us))
    start = jnp.array(problem.start)
    last, states = jax.jit(lambda us: jax.lax.scan(lambda x, u: (stage(x, u)[0], x), start, us))(us)
    return np.concatenate([states, last[None]])


def casadi_solver(
    problem: Problem,
    T: int,
    plugin: str,
    iterations: int,
    expand: bool,
    tol: float = 1e-12,
    compiled: bool = False,
) -> Callable[[], tuple[Any, Any]]:
    """Multiple shooting in casadi: a function that runs at most `iterations` of the solver from our first point.

    Its variables are (x_0, u_0, x_1, ...) and its constraints the gaps in the same order, as fatrop asks for. `compiled` has
    the functions written out as C and compiled, where the virtual machine would run them.
    """
    import casadi

    dt = problem.duration / T
    x, u = casadi.SX.sym("x", problem.nx), casadi.SX.sym("u", problem.nu)

    def parts(v: Any, n: int) -> list[Any]:
        return [v[i] for i in range(n)]

    new = runge_kutta(
        lambda x: casadi.vertcat(*problem.flow(casadi, parts(x, problem.nx), parts(u, problem.nu))), x, dt
    )
    cost = problem.stage_cost(parts(x, problem.nx), parts(u, problem.nu), dt)
    stage = casadi.Function("stage", [x, u], [new, cost])
    final = casadi.Function("final", [x], [problem.final_cost(parts(x, problem.nx))])
    xs = [casadi.MX.sym(f"x{t}", problem.nx) for t in range(T + 1)]
    us = [casadi.MX.sym(f"u{t}", problem.nu) for t in range(T)]
    total, gaps = 0, []
    for t in range(T):
        reached, spent = stage(xs[t], us[t])
        total += spent
        gaps.append(xs[t + 1] - reached)
        if t == 0:
            gaps.append(xs[0] - casadi.DM(problem.start))
    total += final(xs[T])
    gaps = casadi.vertcat(*gaps)
    variables = casadi.vertcat(*[v for pair in zip(xs, us, strict=False) for v in pair], xs[T])
    quiet = {
        "ipopt": {"ipopt": {"max_iter": iterations, "print_level": 0, "sb": "yes", "tol": tol}},
        "fatrop": {
            "fatrop": {"max_iter": iterations, "print_level": 0, "tolerance": tol},
            "structure_detection": "auto",
            "equality": [True] * gaps.numel(),
        },
    }[plugin]
    options = {**quiet, "print_time": False, "expand": expand, "error_on_fail": False}
    if compiled:
        options |= {"jit": True, "compiler": "shell", "jit_options": {"flags": ["-O2"]}}
    solver = casadi.nlpsol("solver", plugin, {"x": variables, "f": total, "g": gaps}, options)
    first = problem.first_inputs(T)
    states = rollout(problem, first)
    start = np.concatenate([*(np.concatenate(p) for p in zip(states[:-1], first, strict=True)), states[-1]])

    def run() -> tuple[Any, Any]:
        out = solver(x0=start, lbg=0, ubg=0)
        return out["x"], solver.stats()

    return run


def _cartpole(lib: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    cart, pole, length, gravity = 1.0, 0.2, 0.5, 9.81
    sin, cos, rate, force = lib.sin(x[1]), lib.cos(x[1]), x[3], u[0]
    mass = cart + pole * sin**2
    push = force + pole * sin * (length * rate**2 + gravity * cos)
    swing = -force * cos - pole * length * rate**2 * cos * sin - (cart + pole) * gravity * sin
    return [x[2], rate, push / mass, swing / (length * mass)]


def _quadrotor(lib: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    """State: position, velocity, roll-pitch-yaw, body rates; inputs: the thrusts of four rotors."""
    mass, arm, drag, gravity = 0.5, 0.17, 0.02, 9.81
    inertia = (3e-3, 3e-3, 5e-3)
    sr, cr, sp, cp = lib.sin(x[6]), lib.cos(x[6]), lib.sin(x[7]), lib.cos(x[7])
    sy, cy, tp = lib.sin(x[8]), lib.cos(x[8]), lib.tan(x[7])
    p, q, r = x[9], x[10], x[11]
    lift = (u[0] + u[1] + u[2] + u[3]) / mass
    return [
        x[3],
        x[4],
        x[5],
        lift * (cr * sp * cy + sr * sy),
        lift * (cr * sp * sy - sr * cy),
        lift * cr * cp - gravity,
        p + tp * (sr * q + cr * r),
        cr * q - sr * r,
        (sr * q + cr * r) / cp,
        (arm * (u[1] - u[3]) + (inertia[1] - inertia[2]) * q * r) / inertia[0],
        (arm * (u[2] - u[0]) + (inertia[2] - inertia[0]) * p * r) / inertia[1],
        (drag * (u[0] - u[1] + u[2] - u[3]) + (inertia[0] - inertia[1]) * p * q) / inertia[2],
    ]


CARTPOLE = Problem(
    name="cartpole",
    nx=4,
    nu=1,
    duration=4.0,
    flow=_cartpole,
    weight_x=(0.1, 0.0, 0.0, 0.0),
    weight_u=0.1,
    weight_final=(10.0, 30.0, 1.0, 1.0),
    start=(0.0, 0.0, 0.0, 0.0),
    goal=(0.0, math.pi, 0.0, 0.0),
    rest=(0.0,),
    guess=lambda times: 5.0 * np.sin(math.sqrt(9.81 / 0.5) * times)[:, None],
)
_HOVER = 0.5 * 9.81 / 4
QUADROTOR = Problem(
    name="quadrotor",
    nx=12,
    nu=4,
    duration=2.0,
    flow=_quadrotor,
    weight_x=(1.0,) * 3 + (0.1,) * 3 + (0.5,) * 3 + (0.05,) * 3,
    weight_u=0.1,
    weight_final=(20.0,) * 3 + (5.0,) * 3 + (10.0,) * 3 + (1.0,) * 3,
    start=(0.0,) * 12,
    goal=(1.0, 1.0, 0.5) + (0.0,) * 9,
    rest=(_HOVER,) * 4,
    guess=lambda times: _HOVER + 0.01 * np.sin(3 * times)[:, None] * np.array([1.0, -0.5, 0.7, -0.2]),
)
