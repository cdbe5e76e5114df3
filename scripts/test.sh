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

echo "== lint and types"
ruff check .
ruff format --check .
mypy

echo "== Rust"
cargo fmt --check
cargo clippy --all-targets --quiet -- -D warnings
# all targets again: the crates that tests and benchmarks need are then those of the first pass
cargo clippy --all-targets --features python --quiet -- -D warnings
cargo test --quiet

echo "== Python"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# two workers; all tests of a file run on one of them, because they share training runs
python -m pytest --numprocesses 2 --dist loadfile "$@"

if [ -n "$not_run" ]; then
    printf '\n!!! NOT RUN: %s\n\n' "$not_run" >&2
fi
