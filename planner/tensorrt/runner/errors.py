"""What can go wrong while engines are built and run."""


class RunError(Exception):
    """Something that a person must know, in one line: what failed, where, and why."""


class InputError(RunError):
    """What was given cannot be right: an option, a variable, a file of the folder or beside it."""


class MissingError(RunError):
    """TensorRT, NCCL or bindings of CUDA are not installed, or are older than the plan needs."""


class LateError(RunError):
    """Something took longer than it may: a rank is missing or stuck."""
