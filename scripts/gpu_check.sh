#!/usr/bin/env bash
# All checks and benchmarks that need a GPU, in under ten minutes on one card. They run from a clean clone, without
# torchtitan or Rust: every Triton kernel is compared with the fp64 reference on the card, the kernels that are correct
# are timed, and all kernels are compiled for the card.
#
#   bash scripts/gpu_check.sh [output folder]        writes check.json, gpu.json, kernels.json and report.md there
#
# If a part fails, the next one runs all the same, and the exit status is 1. Results are written as they are measured.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${1:-gpu_check}" || exit 1
out=$(cd "${1:-gpu_check}" && pwd)
python=${PYTHON:-python3}

# torch and triton are installed only if the machine has none
"$python" -c "import torch, triton" || "$python" -m pip install --quiet torch triton numpy || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

status=0
: >"$out/report.md"
part() {
    "$python" "$@" 2>&1 | tee -a "$out/report.md" || status=1
}
part scripts/bench/gpu_correctness.py --out "$out/check.json"
part scripts/bench/run.py --suite gpu --device cuda --checked "$out/check.json" --budget-minutes 4.5 --out "$out/gpu.json"
part scripts/bench/ahead_of_time.py --device --dtypes bf16 --out "$out/kernels.json"
echo "written to $out"
exit "$status"
