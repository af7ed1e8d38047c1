#!/usr/bin/env bash
# Times the compiled forward's products of weights in blocks by fed tokens:
#   scripts/product_costs.sh [-march=x86-64-v3] [Q4_0 Q4_K ...]
# "cycles" are those of a core for 32 inputs x 16 outputs of a token, with weights from the second-level
# cache. "memory", "arithmetic" and "together" are the time to read all weights, to multiply as many from
# the cache, and both. THREADS (2), MEGABYTES (600: large processors' caches keep less) and CXXFLAGS are
# read from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
native=trtla/runtime/models/cpu/native
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

march=-march=native
case "${1:-}" in -march=*) march=$1; shift ;; esac
[ $# -gt 0 ] || set -- Q4_0 Q4_K Q8_0
flags=("$march" -O3 -std=gnu++17 -w "-I$native" -pthread ${CXXFLAGS:-})
for file in scripts/product_costs.cpp "$native"/products_*.cpp; do
    "${CXX:-g++}" "${flags[@]}" -c "$file" -o "$made/$(basename "$file").o" &
done
for job in $(jobs -p); do wait "$job"; done
"${CXX:-g++}" "${flags[@]}" "$made"/*.o -o "$made/costs"
"$made/costs" "${THREADS:-2}" "${MEGABYTES:-600}" "$@"
