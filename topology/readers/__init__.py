"""Readers of what people have: tables of nvidia-smi, XML of NCCL and nvidia-smi, our own forms.

Each turns text into a `Reading` (what the text says) or straight into a `Machine`.
"""
