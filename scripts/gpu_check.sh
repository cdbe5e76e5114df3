#!/usr/bin/env bash
# Everything a GPU must show, in under ten minutes on one card, from a clean clone:
# the operators' tests on the CPU, every Triton kernel against the oracle on the card, the kernel table, the benchmarks.
#
#   bash scripts/gpu_check.sh [output folder]        writes check.json, gpu.json, kernels.json and report.md there
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-gpu_check}" && cd "${1:-gpu_check}" && pwd)
python=${PYTHON:-python3}

# torch and triton of the machine are used where they are there; only the missing pieces are installed
"$python" - <<'PY' || "$python" -m pip install --quiet torch triton numpy pytest
import numpy, pytest, torch, triton
PY
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

"$python" scripts/bench/gpu_correctness.py --out "$out/check.json" | tee "$out/report.md"
"$python" scripts/bench/ahead_of_time.py --device --out "$out/kernels.json" | tee -a "$out/report.md"
"$python" scripts/bench/run.py --suite gpu --device cuda --budget-minutes 4.5 --out "$out/gpu.json" | tee -a "$out/report.md"
echo "written to $out"
