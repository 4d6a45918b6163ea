"""How long one kernel takes on one GPU, without the host's cost of launching it."""

from costmodels.kernels.attention import attention_basis, attention_time
from costmodels.kernels.experts import experts_basis, experts_parts, experts_time, served_as
from costmodels.kernels.latent import (
    head_product_time,
    latent_basis,
    latent_context_time,
    latent_decode_time,
)
from costmodels.kernels.matmul import matmul_basis, matmul_time
from costmodels.kernels.pointwise import chain_time, pointwise_basis, pointwise_time

__all__ = [
    "attention_basis", "attention_time", "chain_time", "experts_basis", "experts_parts",
    "experts_time", "head_product_time", "latent_basis", "latent_context_time",
    "latent_decode_time", "matmul_basis", "matmul_time", "pointwise_basis", "pointwise_time",
    "served_as",
]  # fmt: skip
