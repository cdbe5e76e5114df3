"""A training loop like nanoGPT's: DistributedDataParallel, GradScaler, gradient accumulation, one checkpoint file.

    python scripts/examples/nanogpt/train.py --data DIR --out_dir out    # DIR: train.bin and val.bin, uint16
    torchrun --nproc_per_node 2 scripts/examples/nanogpt/train.py --data DIR --out_dir out
    python scripts/examples/nanogpt/train.py --data DIR --out_dir out --resume   # before or after the freeze

Selective Attention Freezing adds the lines that end in "# SAF", ten in this file and model.py together. Save and resume
need none, because the static heads are part of the model's state dict.
"""

import argparse
import contextlib
import math
import os
from pathlib import Path

import numpy as np
import torch
from model import GPT, GPTConfig
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from saf_titan.own_loop import Freezer  # SAF


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out_dir", type=Path, default=Path("out"))
    parser.add_argument("--resume", action="store_true")
    for name, default in {
        "batch_size": 8, "gradient_accumulation_steps": 2, "max_iters": 200, "eval_interval": 50, "warmup_iters": 10,
        "block_size": 256, "vocab_size": 50304, "n_layer": 4, "n_head": 4, "n_embd": 128, "seed": 1337,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--freeze_at", type=int, default=100)  # SAF
    parser.add_argument("--freeze_rate", type=float, default=0.25)  # SAF
    return parser.parse_args(argv)


def main(argv=None):
    args = arguments(argv)
    ddp = "RANK" in os.environ
    rank, world_size, device = 0, 1, args.device
    if ddp:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        device = f"cuda:{os.environ['LOCAL_RANK']}" if args.device == "cuda" else "cpu"
    device_type = torch.device(device).type
    is_mixed = args.dtype != "float32"
    autocast = torch.autocast(device_type, getattr(torch, args.dtype)) if is_mixed else contextlib.nullcontext()

    def get_batch(split, number):
        """Return windows that depend only on `number` and the rank, so that a resumed run reads the same ones."""
        data = np.memmap(args.data / f"{split}.bin", dtype=np.uint16, mode="r")
        generator = torch.Generator().manual_seed(args.seed + number * world_size + rank)
        starts = torch.randint(len(data) - args.block_size, (args.batch_size,), generator=generator).tolist()
        rows = np.stack([data[start : start + args.block_size + 1].astype(np.int64) for start in starts])
        windows = torch.from_numpy(rows).to(device)
        return windows[:, :-1], windows[:, 1:]

    torch.manual_seed(args.seed)
    config = GPTConfig(args.block_size, args.vocab_size, args.n_layer, args.n_head, args.n_embd)
    raw_model = GPT(config).to(device)
    optimizer = raw_model.configure_optimizer(weight_decay=0.1, learning_rate=args.learning_rate)
    scaler = torch.amp.GradScaler(device_type, enabled=args.dtype == "float16")
    iter_num, path = 0, args.out_dir / "ckpt.pt"
    if args.resume:
        checkpoint = torch.load(path, map_location=device)
        raw_model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        iter_num = checkpoint["iter_num"]
    model = DistributedDataParallel(raw_model) if ddp else raw_model
    freezer = Freezer(model, optimizer, rate=args.freeze_rate)  # SAF

    @torch.no_grad()
    def estimate_loss():
        raw_model.eval()
        losses = []
        for number in range(4):
            with autocast:
                losses.append(raw_model(*get_batch("val", number))[1])
        raw_model.train()
        return torch.stack(losses).mean().item()

    def save():
        args.out_dir.mkdir(parents=True, exist_ok=True)
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        # a process that is killed while it saves must not take the last checkpoint with it
        torch.save(state | {"iter_num": iter_num}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    while True:
        if iter_num == args.freeze_at and freezer.plan is None:  # SAF
            freezer.freeze([get_batch("val", 100 + number)[0] for number in range(4)], step=iter_num)  # SAF
            print(freezer) if rank == 0 else None  # SAF
        if iter_num % args.eval_interval == 0 and rank == 0:
            print(f"step {iter_num}: val loss {estimate_loss():.4f}", flush=True)
            save()
        if iter_num >= args.max_iters:
            break
        progress = (iter_num - args.warmup_iters) / max(1, args.max_iters - args.warmup_iters)
        warm = (iter_num + 1) / (args.warmup_iters + 1)
        factor = warm if progress < 0 else 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * factor
        for micro_step in range(args.gradient_accumulation_steps):
            last = micro_step == args.gradient_accumulation_steps - 1
            with contextlib.nullcontext() if last or not ddp else model.no_sync():
                with autocast:
                    number = 1000 + iter_num * args.gradient_accumulation_steps + micro_step
                    loss = model(*get_batch("train", number))[1] / args.gradient_accumulation_steps
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(raw_model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
