#!/usr/bin/env bash
# Everything a GPU must show, in under ten minutes on one card, from a clean clone and without torchtitan or Rust:
# every Triton kernel against the oracle on the card, the benchmarks of what is right, the kernels as assembled for it.
#
#   bash scripts/gpu_check.sh [output folder]        writes check.json, gpu.json, kernels.json and report.md there
#
# A part that fails does not stop the next; the exit status is 1 if any did. What is measured is written at once.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${1:-gpu_check}" || exit 1
out=$(cd "${1:-gpu_check}" && pwd)
python=${PYTHON:-python3}

# torch and triton of the machine are used where they are there
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
