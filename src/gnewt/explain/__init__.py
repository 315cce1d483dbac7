"""Explain: what gnewt found in an objective, what a step costs, and why."""

from gnewt.explain.report import FamilyRow, Report, explain

__all__ = ["FamilyRow", "Report", "explain"]
