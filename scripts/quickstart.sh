#!/usr/bin/env bash
# From a fresh clone to a trained decoder with static heads and a report: installs the project, tokenizes the bundled
# text, trains the debug model on two CPU processes and freezes a quarter of its heads half-way. Arguments are passed to
# the trainer.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if [ ! -f data/sample_edu/manifest.json ]; then
    python -m rust_data.tokenize sample:edu --out data/sample_edu --val-tokens 100K
fi

# one thread for each of the two processes, because the machine may have only two cores
SAF_TITAN_DEVICE=cpu OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 --local-ranks-filter 0 \
    -m saf_titan.train --config configs/debug_cpu.toml "$@"
