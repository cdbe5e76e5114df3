#!/usr/bin/env bash
# Runs every check of the project, from a fresh clone: lint, types, Rust and Python tests. Arguments are for pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev

# some tests open the report in a real browser
if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "Installing chromium for the report's tests ..."
    { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null || true
fi
not_run=""
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
    not_run="the report's tests in a browser: install chromium"
fi

echo "== lint, types and Rust"
ruff check .
ruff format --check .
cargo fmt --check
# mypy has one core to itself, and cargo the other until it is done
types=$(mktemp)
mypy >"$types" 2>&1 &
# the part for Python is in the first pass, and the crate without it in the second: warnings are errors in both
RUSTFLAGS="-D warnings" cargo clippy --all-targets --features python --quiet
RUSTFLAGS="-D warnings" cargo test --quiet
wait $! || { cat "$types"; fail "mypy found errors"; }
tail -1 "$types"

echo "== Python"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# two workers; all tests of a file run on one of them, because they share training runs
python -m pytest --numprocesses 2 --dist loadfile "$@"

if [ -n "$not_run" ]; then
    printf '\n!!! NOT RUN: %s\n\n' "$not_run" >&2
fi
