#!/bin/sh
# Fuzzes every decoder: run.sh [SECONDS_IN_ALL] [TARGET ...]. Default: 600 s over all targets, two at a time.
# Needs the nightly toolchain and cargo-fuzz; `make fuzz` installs them.
set -eu
cd "$(dirname "$0")"

seconds_in_all=${1:-600}
[ $# -gt 0 ] && shift
targets=${*:-$(cargo +nightly fuzz list)}
jobs=${FUZZ_JOBS:-$(nproc)}
count=$(echo "$targets" | wc -w)
seconds=$((seconds_in_all * jobs / count))
[ "$seconds" -ge 1 ] || seconds=1

# The targets are small and many: one build of all.
cargo +nightly fuzz build
cargo run --quiet --release --example seeds -- corpus

echo "fuzz: $count targets, $seconds s each, $jobs at a time"
mkdir -p artifacts/logs
# -timeout: an input that takes 10 s under the sanitizer is a hang; -rss_limit_mb: memory that a decoder must not need.
fuzz_one() {
    if cargo +nightly fuzz run "$1" -- -max_total_time="$2" -timeout=10 -rss_limit_mb=768 -max_len=65536 \
        -print_final_stats=1 >"artifacts/logs/$1.log" 2>&1; then
        echo "fuzz: $1: clean, $(sed -n 's/^stat::number_of_executed_units: *//p' "artifacts/logs/$1.log") runs"
    else
        echo "fuzz: $1: FAILED, see fuzz/artifacts/logs/$1.log"
        return 1
    fi
}

failed=0
running=0
pids=
for target in $targets; do
    fuzz_one "$target" "$seconds" &
    pids="$pids $!"
    running=$((running + 1))
    if [ "$running" -ge "$jobs" ]; then
        for pid in $pids; do wait "$pid" || failed=1; done
        pids=
        running=0
    fi
done
for pid in $pids; do wait "$pid" || failed=1; done
exit "$failed"
