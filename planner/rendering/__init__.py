"""Answers as text, Markdown and pages."""
