"""Calibration profiles: what was fitted on one machine, and how far to trust it."""
