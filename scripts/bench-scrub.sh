#!/usr/bin/env bash
# Scrub of a store in the page cache, without a server and by the server of a mounted volume, beside
# reading all of its segments with cat and with b3sum, if that is there. Then the latency of small
# synced writes beside a scrub. Prints a table.
#
# usage: bench-scrub.sh [MIB]     MIB (2000) of data that cannot be compressed, in files of 1 MiB
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need_root bench-scrub
need_fuse
need cargo python3
[ -n "${WEALD_BENCH_BUILT:-}" ] || profile=release build_programs
mib=${1:-2000}
work=$(mktemp -d "${TMPDIR:-/tmp}/weald-scrub.XXXXXX")
end() {
    "$weald" umount "$work/mnt" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
chmod 700 "$work"
export WEALD_RUNTIME_DIR=$work/run
mkdir "$work/mnt" "$work/run"
chmod 700 "$work/run"
"$weald" store create -q "$work/store"
"$weald" volume create -q "$work/store:v"
"$weald" mount "$work/store:v" "$work/mnt"
for ((number = 0; number < mib; number++)); do
    head -c 1M /dev/urandom >"$work/mnt/$number"
done
sync -f "$work/mnt"
"$weald" umount "$work/mnt"

len=$(du -sb "$work/store/segments" | cut -f1)
# row WORDS COMMAND...: bytes a second of a command that reads all of the store.
row() {
    local words=$1 start ms
    shift
    start=$(date +%s%N)
    "$@"
    ms=$((($(date +%s%N) - start) / 1000000))
    printf '%-44s %8d ms %8d MB/s\n' "$words" "$ms" $((len / (ms + 1) / 1000))
}
# Twice, so that the page cache has it.
cat "$work"/store/segments/* >/dev/null
row "cat of all segments" bash -c "cat '$work'/store/segments/* >/dev/null"
if command -v b3sum >/dev/null; then
    row "b3sum of all segments, one thread" bash -c "b3sum --num-threads 1 '$work'/store/segments/* >/dev/null"
fi
row "weald scrub start" "$weald" scrub start -q "$work/store"
row "weald store check --data" "$weald" store check --data -q "$work/store"
"$weald" mount "$work/store:v" "$work/mnt"
row "weald scrub start --wait, a volume mounted" "$weald" scrub start -q --wait "$work/store"

# latency WORDS: of 200 synced writes of 4 KiB.
latency() {
    python3 -I - "$work/mnt" "$1" <<'PYTHON'
import os, sys, time
path, words = sys.argv[1:]
file = os.open(f"{path}/synced", os.O_CREAT | os.O_WRONLY)
times = []
for number in range(200):
    start = time.monotonic()
    os.pwrite(file, os.urandom(4096), number * 4096)
    os.fsync(file)
    times.append(time.monotonic() - start)
times.sort()
print(f"{words:44} {times[100] * 1e3:8.2f} ms median {times[197] * 1e3:8.2f} ms p99")
PYTHON
}
latency "synced writes"
"$weald" scrub start -q "$work/store" 2>/dev/null
latency "synced writes beside a scrub"
"$weald" scrub pause "$work/store" 2>/dev/null || true
"$weald" umount "$work/mnt"
