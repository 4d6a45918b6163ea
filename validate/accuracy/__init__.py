"""How right the models are, on the figures that ship with the project."""
