#!/usr/bin/env bash
# Checks the integer products of the compiled forward on every instruction level that this machine runs,
# and on ARM where a cross compiler and qemu are there:
#   scripts/check_products.sh
# apt-get install g++-aarch64-linux-gnu qemu-user brings the last two.
set -euo pipefail
cd "$(dirname "$0")/.."
native=trtla/runtime/models/cpu/native
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

more=
check() {  # compiler, instructions, how to run it
    echo "== $2${more:+ $more}"
    "$1" "-march=$2" -O2 -std=gnu++17 -ffp-contract=fast -w $more "-I$native" -o "$made/products" \
        tests/native/products.cpp "$native"/products_*.cpp -pthread
    "${@:3}" "$made/products"
}

flags=$(grep -m1 -E '^flags' /proc/cpuinfo || true)
if [ "$(uname -m)" = x86_64 ]; then
    check "${CXX:-g++}" x86-64
    check "${CXX:-g++}" x86-64-v2
    case "$flags" in *avx2*) check "${CXX:-g++}" x86-64-v3 ;; esac
    case "$flags" in *avx_vnni*) check "${CXX:-g++}" alderlake ;; esac
    case "$flags" in *avx512bw*) check "${CXX:-g++}" skylake-avx512 ;; esac
    case "$flags" in *avx512_vnni*) check "${CXX:-g++}" cascadelake ;; esac
    more="-include tests/native/tiles.h"  # matrix tiles, interpreted
    case "$flags" in *avx512_bf16*) check "${CXX:-g++}" cooperlake ;; esac
    more=
fi
check "${CXX:-g++}" native
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if [ -n "$qemu" ] && command -v aarch64-linux-gnu-g++ >/dev/null; then
    more=-static
    check aarch64-linux-gnu-g++ armv8-a "$qemu"
    check aarch64-linux-gnu-g++ armv8.2-a+dotprod "$qemu"
else
    echo "ARM is left out: it needs aarch64-linux-gnu-g++ and qemu-aarch64"
fi
