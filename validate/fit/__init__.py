"""From measured rows to calibration profiles and tables."""
