#!/bin/bash
# run.sh [SECONDS_IN_ALL] [TARGET ...]: fuzzes every decoder, FUZZ_JOBS (default: one on each processor) at a time. Default: 600 s
# over all targets. Needs the nightly toolchain and cargo-fuzz, which `make fuzz` installs. Corpora grow in fuzz/corpus; what
# fails lies in fuzz/artifacts/TARGET, its log in fuzz/artifacts/logs.
set -euo pipefail
cd "$(dirname "$0")"

seconds_in_all=${1:-600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
jobs=${FUZZ_JOBS:-$(nproc)}
seconds=$((seconds_in_all * jobs / ${#targets[@]}))
[ "$seconds" -ge 1 ] || seconds=1

# One build of all; then the programs run themselves, so that nothing is built while others run.
cargo +nightly fuzz build
cargo run --quiet --release --example seeds -- corpus
host=$(rustc -vV | sed -n 's/^host: //p')
programs=${CARGO_TARGET_DIR:-target}/$host/release

# -timeout: an input that takes 10 s under the sanitizer is a hang; -rss_limit_mb: the sanitizer alone keeps 256 MiB of freed memory.
fuzz_one() {
    # A check has threads; what glibc keeps for the end of a thread looks like a leak while the thread still ends.
    local leaks=1
    case $1 in image*) leaks=0 ;; esac
    mkdir -p "corpus/$1" "artifacts/$1" artifacts/logs
    if "$programs/$1" "corpus/$1" -artifact_prefix="artifacts/$1/" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=768 \
        -max_len=65536 -detect_leaks=$leaks -print_final_stats=1 >"artifacts/logs/$1.log" 2>&1; then
        echo "fuzz: $1: clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "artifacts/logs/$1.log") runs"
    else
        echo "fuzz: $1: FAILED, see fuzz/artifacts/logs/$1.log" >&2
        return 1
    fi
}

echo "fuzz: ${#targets[@]} targets, $seconds s each, $jobs at a time"
failed=0
pids=()
for target in "${targets[@]}"; do
    if [ ${#pids[@]} -ge "$jobs" ]; then
        wait "${pids[0]}" || failed=1
        pids=("${pids[@]:1}")
    fi
    fuzz_one "$target" &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
exit "$failed"
