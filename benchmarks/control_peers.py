"""crocoddyl's FDDP on the problems of `ocp.py`.

crocoddyl ships no C++ model of either: its actuations in C++ drive all joints or all but a root joint, its quadrotor has other
coordinates, and its integrators integrate the cost, too. So these are Python action models; dynamics and derivatives are casadi functions
called through buffers (a microsecond of overhead), in order to measure crocoddyl and the functions, not the conversion of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ocp


def fddp(
    problem: ocp.Problem, T: int, models: tuple[Any, Any], iterations: int, th_stop: float
) -> Callable[[], Any]:
    """A function that runs FDDP from the rollout of the first inputs and returns the solver."""
    import crocoddyl

    running, final = models
    first = problem.first_inputs(T)
    xs, us = list(ocp.rollout(problem, first)), list(first)
    shooting = crocoddyl.ShootingProblem(np.array(problem.start), [running] * T, final)
    solver = crocoddyl.SolverFDDP(shooting)
    solver.th_stop = th_stop

    def run() -> Any:
        solver.solve(xs, us, iterations, True)
        return solver

    return run


def stage_models(problem: ocp.Problem, T: int, compiled: bool = False) -> tuple[Any, Any]:
    """Python action models for the stages and the end; `compiled` turns their casadi functions into C."""
    import casadi
    import crocoddyl

    dt = problem.duration / T
    x, u = casadi.SX.sym("x", problem.nx), casadi.SX.sym("u", problem.nu)
    parts_x, parts_u = ([v[i] for i in range(v.numel())] for v in (x, u))
    step = ocp.runge_kutta(
        lambda x: casadi.vertcat(*problem.flow(casadi, [x[i] for i in range(problem.nx)], parts_u)), x, dt
    )
    options = {"jit": True, "compiler": "shell", "jit_options": {"flags": ["-O2"]}} if compiled else {}

    def call(name: str, outputs: dict[str, Any]) -> _Call:
        dense = [casadi.densify(out) for out in outputs.values()]
        return _Call(casadi.Function(name, [x, u], dense, ["x", "u"], list(outputs), options))

    class Stage(crocoddyl.ActionModelAbstract):
        """One stage, or the end: x ↦ next x and cost, with Gauss–Newton derivatives (crocoddyl asks for no others)."""

        def __init__(self, after: Any, cost: Any) -> None:
            super().__init__(crocoddyl.StateVector(problem.nx), problem.nu, 1)
            self.values = call("values", {"after": after, "cost": cost})
            lx, lu = casadi.gradient(cost, x), casadi.gradient(cost, u)
            blocks = {"fx": casadi.jacobian(after, x), "fu": casadi.jacobian(after, u), "lx": lx, "lu": lu}
            blocks |= {
                "lxx": casadi.jacobian(lx, x),
                "lxu": casadi.jacobian(lx, u),
                "luu": casadi.jacobian(lu, u),
            }
            self.derivatives = call("derivatives", blocks)
            self.zero = np.zeros(problem.nu)

        def calc(self, data: Any, x: Any, u: Any = None) -> None:
            after, cost = self.values(x, self.zero if u is None else u)
            data.xnext, data.cost = after, cost[0]

        def calcDiff(self, data: Any, x: Any, u: Any = None) -> None:
            blocks = self.derivatives(x, self.zero if u is None else u)
            data.Fx, data.Fu, data.Lx, data.Lu, data.Lxx, data.Lxu, data.Luu = blocks

    running = Stage(step, problem.stage_cost(parts_x, parts_u, dt))
    return running, Stage(x, problem.final_cost(parts_x))


class _Call:
    """A casadi function on NumPy arrays, without its conversions."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.buffer, self.run = function.buffer()
        self.inputs = [np.zeros(function.size1_in(i)) for i in range(2)]
        shapes = [(function.size1_out(i), function.size2_out(i)) for i in range(function.n_out())]
        flat = [np.zeros(rows * columns) for rows, columns in shapes]
        is_vector = [function.name_out(i) in ("after", "cost", "lx", "lu") for i in range(function.n_out())]
        self.outputs = [
            a if v else a.reshape(s, order="F") for a, s, v in zip(flat, shapes, is_vector, strict=True)
        ]
        for i, array in enumerate(self.inputs):
            self.buffer.set_arg(i, memoryview(array))
        for i, array in enumerate(flat):
            self.buffer.set_res(i, memoryview(array))

    def __call__(self, x: Any, u: Any) -> list[np.ndarray]:
        self.inputs[0][:], self.inputs[1][:] = x, u
        self.run()
        return self.outputs
