"""Machines and hardware as people look at them: text, Markdown, a page with a drawing."""

from topology.drawing.picture import svg
from topology.drawing.report import hardware_table, markdown, parts, report

__all__ = ["hardware_table", "markdown", "parts", "report", "svg"]
