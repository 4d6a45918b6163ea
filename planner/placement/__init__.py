"""Which rank of a plan sits on which GPU, and the links that each axis gets."""
