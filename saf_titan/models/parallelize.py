"""FSDP2 (also as HSDP, DDP or on one process), activation checkpointing and compile for decoders with our attention."""

from __future__ import annotations

import spmd_types as spmd
import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.config import TORCH_DTYPE_MAP, CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointingConfig
from torchtitan.distributed.compile import apply_compile
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.distributed.full_dtensor import resolve_fsdp_mesh
from torchtitan.models.common.decoder_sharding import dense_param_placement
from torchtitan.protocols.module import Module
from torchtitan.protocols.sharding import ShardingConfig

from saf_titan import compat
from saf_titan.models.decoder import FreezableDecoder


def parallelize_decoder(
    model: FreezableDecoder,
    *,
    parallel_dims: ParallelDims,
    training: TrainingConfig,
    parallelism: ParallelismConfig,
    compile_config: CompileConfig,
    ac_config: ActivationCheckpointingConfig,
    dump_folder: str,
) -> FreezableDecoder:
    """Parallelize the model in place and return it; this is torchtitan's ``parallelize_fn`` for `FreezableDecoder`.

    Raises ValueError for tensor, pipeline and context parallelism, which split heads, layers or time.
    """
    for name, degree in (("tensor", parallel_dims.tp), ("pipeline", parallel_dims.pp), ("context", parallel_dims.cp)):
        if degree > 1:
            raise ValueError(
                f"parallelism.{name}_parallel_degree = {degree}: a model that can be frozen supports data parallelism "
                f"only (FSDP, HSDP); set it to 1"
            )
    if parallelism.spmd_backend == "partial_dtensor":
        names = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
        mesh, data_parallel_dims = parallel_dims.get_mesh(names), None
    else:
        _declare_replicated(model)
        model.parallelize(parallel_dims)
        if model.enable_weight_tying:
            # spmd_types registers every parameter anew, which unties the embeddings; tie them before FSDP shards them
            model.tok_embeddings.weight = model.lm_head.weight
        mesh, data_parallel_dims = resolve_fsdp_mesh(parallel_dims)

    if ac_config is not None:
        ac_config.build(dump_folder=dump_folder).apply(model)
    if compile_config.enable and "model" in compile_config.components:
        # All blocks share one code object, and each pair of counts (live, static) needs one graph for training and one
        # for evaluation. With fullgraph=True, more graphs than the limit (8 by default) are an error.
        limit = 4 * len(model.layers) + 8
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
        apply_compile(model, compile_config=compile_config, parallel_dims=parallel_dims)

    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
        pp_enabled=False,
        cpu_offload=training.enable_cpu_offload,
        reshard_after_forward_policy=parallelism.fsdp_reshard_after_forward,
        dp_mesh_dims=data_parallel_dims,
    )
    if compat.is_cpu():
        use_sum_reduction(model)
    return model


def use_sum_reduction(model: torch.nn.Module) -> None:
    """Make FSDP reduce with plain sums, because gloo has no PREMUL_SUM and its AVG may be wrong (pytorch #162338)."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def _declare_replicated(model: torch.nn.Module) -> None:
    """Declare every parameter and buffer replicated, because the spmd_types backend needs a placement for each."""
    for module in model.modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        names += [name for name, _ in module.named_buffers(recurse=False)]
        if isinstance(module, Module) and names:
            placements = {name: dense_param_placement(tp=spmd.R) for name in names}
            module._sharding_config = ShardingConfig(state_shardings=placements)
