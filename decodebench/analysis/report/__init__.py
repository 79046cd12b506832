"""Recorded runs as one HTML file that needs nothing else: no network, no folder of assets, no server."""

from decodebench.analysis.report.page import build_report

__all__ = ["build_report"]
