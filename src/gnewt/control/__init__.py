"""Optimal control: the DDP family, policies, model-predictive control. Sugar over `gnewt.minimize`."""

from gnewt.control.mpc import MPCStep, mpc_step
from gnewt.control.problem import Problem
from gnewt.control.solve import METHODS, Solution, solve

__all__ = ["METHODS", "MPCStep", "Problem", "Solution", "mpc_step", "solve"]
