"""crocoddyl's FDDP on the problems of `ocp.py`.

crocoddyl ships no C++ model of either: its actuations in C++ drive all joints, or all but a root joint, or the thrusters of a body that
flies freely, so that no cartpole is among them. Its quadrotor (`multicopter`) has quaternions and velocities in the frame of the body,
and its Runge-Kutta integrators integrate the cost, too: another problem, with another optimum. So what is compared are Python action
models; dynamics and derivatives are casadi functions called through buffers (a microsecond of overhead), in order to measure crocoddyl
and the functions, not the conversion of arrays.
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


def multicopter(problem: ocp.Problem, T: int, iterations: int) -> Callable[[], Any]:
    """FDDP on crocoddyl's own quadrotor in C++, with the masses, weights, horizon and start of ours: not the same problem."""
    import crocoddyl
    import pinocchio

    mass, arm, drag, dt = 0.5, 0.17, 0.02, problem.duration / T
    model = pinocchio.Model()
    root = model.addJoint(0, pinocchio.JointModelFreeFlyer(), pinocchio.SE3.Identity(), "root_joint")
    inertia = pinocchio.Inertia(mass, np.zeros(3), np.diag([3e-3, 3e-3, 5e-3]))
    model.appendBodyToJoint(root, inertia, pinocchio.SE3.Identity())
    state = crocoddyl.StateMultibody(model)
    ways = (crocoddyl.ThrusterType.CCW, crocoddyl.ThrusterType.CW) * 2
    places = ((arm, 0, 0), (0, arm, 0), (-arm, 0, 0), (0, -arm, 0))
    rotors = [
        crocoddyl.Thruster(pinocchio.SE3(np.eye(3), np.array(at, float)), drag, way)
        for at, way in zip(places, ways, strict=True)
    ]
    actuation = crocoddyl.ActuationModelFloatingBaseThrusters(state, rotors)
    still = np.array([0.0, 0.0, 0.0, 1.0] + 6 * [0.0])
    goal = np.concatenate([problem.goal[:3], still])

    def model_of(weights: Any, effort: float, step: float) -> Any:
        total = crocoddyl.CostModelSum(state, problem.nu)
        # Tangents are (position, rotation, velocity, rates) where ours are (position, velocity, rotation, rates).
        order = np.concatenate([weights[:3], weights[6:9], weights[3:6], weights[9:]])
        residual = crocoddyl.ResidualModelState(state, goal, problem.nu)
        quadratic = crocoddyl.ActivationModelWeightedQuad(2 * order)
        total.addCost("state", crocoddyl.CostModelResidual(state, quadratic, residual), 1.0)
        if effort:
            residual = crocoddyl.ResidualModelControl(state, np.array(problem.rest))
            quadratic = crocoddyl.ActivationModelWeightedQuad(np.full(problem.nu, 2 * effort))
            total.addCost("effort", crocoddyl.CostModelResidual(state, quadratic, residual), 1.0)
        flow = crocoddyl.DifferentialActionModelFreeFwdDynamics(state, actuation, total)
        return crocoddyl.IntegratedActionModelRK(flow, crocoddyl.RKType.four, step)

    running = model_of(problem.weight_x, problem.weight_u, dt)
    final = model_of(problem.weight_final, 0.0, 0.0)
    start = np.concatenate([problem.start[:3], still])
    shooting = crocoddyl.ShootingProblem(start, [running] * T, final)
    solver = crocoddyl.SolverFDDP(shooting)
    us = list(problem.first_inputs(T))
    xs = list(shooting.rollout(us))

    def run() -> Any:
        solver.solve(xs, us, iterations, True)
        return solver

    return run


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
