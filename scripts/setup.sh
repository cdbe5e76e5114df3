# Makes an environment in .venv with this project and its Rust extension, unless it is up to date. Other scripts source
# this one.
#
#   source scripts/setup.sh [EXTRA]      EXTRA: an optional dependency set of pyproject.toml, for example dev
#
# Needs Python 3.11 or newer (set PYTHON to choose one), a Rust toolchain, and a package index.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "error: $*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; install one or set PYTHON=/path/to/python3"
}

# print everything that an installation depends on; if any of it changes, the project is installed again
fingerprint() {
    cat pyproject.toml Cargo.toml Cargo.lock
    find rust_data/src rust_data/assets -type f | LC_ALL=C sort | xargs cat
    echo "${1:-}"
}

install_project() {
    local extra="${1:-}" stamp=.venv/installed wanted
    command -v cargo >/dev/null || fail "no Rust toolchain found (cargo); see https://rustup.rs"
    wanted=$(fingerprint "$extra" | sha256sum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    [ -d .venv ] || "$(find_python)" -m venv .venv
    echo "Installing into .venv (torch is a download of about 3 GB the first time) ..."
    .venv/bin/python -m pip install --quiet --upgrade "pip>=24"
    .venv/bin/python -m pip install --quiet --editable ".${extra:+[$extra]}"
    echo "$wanted" >"$stamp"
}

install_project "${1:-}"
export PATH="$PWD/.venv/bin:$PATH"
