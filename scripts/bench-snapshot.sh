#!/usr/bin/env bash
# Snapshots of a mounted volume beside those of btrfs, in one run. Both file systems lie in the same
# directory, btrfs in a file of it through a loop device, with commits each second, since it removes
# snapshots at its commits. Prints a table with ratios.
#
# usage: bench-snapshot.sh [FILES [SNAPSHOTS [PERCENT]]]     FILES (100000) files of 20 bytes; then
#        SNAPSHOTS (100) times: PERCENT (1) of the files are written anew, and a snapshot is taken.
#        Then a day of a policy, in ten minutes; WEALD_DAY (4320) is its number of snapshots.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need_root bench-snapshot
need_fuse
need cargo mkfs.btrfs btrfs python3
profile=release build_programs
files=${1:-100000}
count=${2:-100}
changed=$((files * ${3:-1} / 100))
work=$(mktemp -d "${TMPDIR:-/tmp}/weald-snapshot.XXXXXX")
end() {
    "$weald" umount "$work/weald" 2>/dev/null || true
    umount "$work/btrfs" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
chmod 700 "$work"
mkdir "$work/weald" "$work/btrfs"
"$weald" store create -q "$work/store"
"$weald" volume create -q "$work/store:v"
truncate -s 40G "$work/disk"
mkfs.btrfs -q "$work/disk"

mount_weald() { "$weald" mount -o commit-interval=0.2 "$work/store:v" "$work/weald"; }
mount_btrfs() { mount -o loop,noatime,commit=1 "$work/disk" "$work/btrfs"; }
tree() { [ "$1" = weald ] && echo "$work/weald" || echo "$work/btrfs/v"; }
take() {
    case $1 in
    weald) "$weald" snapshot create -q "$work/store:v@$2" ;;
    btrfs) btrfs -q subvolume snapshot -r "$work/btrfs/v" "$work/btrfs/@$2" && sync -f "$work/btrfs" ;;
    esac
}
# ms COMMAND...: its time in milliseconds.
ms() {
    local start
    start=$(date +%s%N)
    "$@"
    echo $((($(date +%s%N) - start) / 1000000))
}
# Writes every FILES/CHANGED-th file anew, from a different one each round.
change() {
    python3 -I - "$(tree "$1")" "$files" "$changed" "$2" <<'PYTHON'
import os, sys
tree, files, changed, round_ = sys.argv[1], *map(int, sys.argv[2:])
step = files // changed
for at in range(changed):
    number = (at * step + round_) % files
    with open(f"{tree}/{number // 100}/{number}", "w") as file:
        file.write(f"{round_:10} {number:8}\n")
PYTHON
    sync -f "$(tree "$1")"
}
make() {
    python3 -I - "$(tree "$1")" "$files" <<'PYTHON'
import os, sys
tree, files = sys.argv[1], int(sys.argv[2])
for number in range(files):
    if number % 100 == 0:
        os.mkdir(f"{tree}/{number // 100}")
    with open(f"{tree}/{number // 100}/{number}", "w") as file:
        file.write(f"{0:10} {number:8}\n")
PYTHON
    sync -f "$(tree "$1")"
}
walk() { find "$(tree "$1")" -mindepth 1 -printf '%s\n' >/dev/null; }
# The time of a walk after a mount, without a cache.
cold() {
    local at
    case $1 in
    weald) "$weald" umount "$work/weald" ;;
    btrfs) umount "$work/btrfs" ;;
    esac
    echo 3 >/proc/sys/vm/drop_caches
    "mount_$1"
    at=$(ms walk "$1")
    echo "$at"
}
# The time of 2,000 calls of stat on names far apart, after a mount, without a cache.
stats() {
    cold "$1" >/dev/null
    case $1 in
    weald) "$weald" umount "$work/weald" ;;
    btrfs) umount "$work/btrfs" ;;
    esac
    echo 3 >/proc/sys/vm/drop_caches
    "mount_$1"
    ms python3 -I - "$(tree "$1")" "$files" <<'PYTHON'
import os, random, sys
tree, files = sys.argv[1], int(sys.argv[2])
random.seed(1)
for number in random.sample(range(files), 2000):
    os.stat(f"{tree}/{number // 100}/{number}")
PYTHON
}
# The time to unpack the archive into a new directory.
untar() {
    local to
    to=$(tree "$1")/untar-$2
    mkdir "$to"
    tar -xf "$work/archive.tar" -C "$to"
    sync -f "$to"
}
# Writes 4 KiB at 8,000 places of a file of 64 MiB.
overwrite() {
    python3 -I - "$(tree "$1")/large" <<'PYTHON'
import os, random, sys
random.seed(2)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
block = random.randbytes(1 << 20)
if os.fstat(file).st_size == 0:
    for at in range(64):
        os.pwrite(file, random.randbytes(1 << 20), at << 20)
    os.fsync(file)
for _ in range(8000):
    at = random.randrange(255) << 12
    os.pwrite(file, block[at:at + 4096], random.randrange(1 << 14) << 12)
os.fsync(file)
PYTHON
}
median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

tar -cf "$work/archive.tar" -C "$root" crates docs scripts
mount_weald
mount_btrfs
btrfs -q subvolume create "$work/btrfs/v"
declare -A figure
for fs in weald btrfs; do
    step "$fs"
    figure[make.$fs]=$(ms make $fs)
    figure[cold.$fs]=$(cold $fs)
    figure[stat.$fs]=$(stats $fs)
    figure[untar.$fs]=$(for number in 1 2 3; do ms untar $fs "$number"; done | median)
    overwrite $fs
    figure[overwrite.$fs]=$(for _ in 1 2 3; do ms overwrite $fs; done | median)
    figure[change.$fs]=$(ms change $fs 0)
    figure[take.$fs]=$(for number in 1 2 3 4 5; do ms take $fs "first$number"; done | median)
    [ $fs = weald ] && before=$(stat -c %s "$work/store/meta")
    changes=() takes=()
    for round in $(seq "$count"); do
        changes+=("$(ms change $fs "$round")")
        # What waits for a commit of the volume is committed then.
        ((count - round > 30)) || sleep 0.6
        takes+=("$(ms take $fs "$round")")
    done
    figure[change_with.$fs]=$(printf '%s\n' "${changes[@]:count/2}" | median)
    figure[take_with.$fs]=$(printf '%s\n' "${takes[@]: -25}" | median)
    figure[cold_with.$fs]=$(cold $fs)
    figure[stat_with.$fs]=$(stats $fs)
    figure[untar_with.$fs]=$(for number in 4 5 6; do ms untar $fs "$number"; done | median)
    figure[overwrite_with.$fs]=$(for _ in 1 2 3; do ms overwrite $fs; done | median)
done
after=$(stat -c %s "$work/store/meta")
take weald ten
(for number in 1 2 3 4 5 6 7 8 9 10; do echo x >"$work/weald/0/$number"; done)
take weald more
differ() { "$weald" diff --ignore mtime "$work/store:v@ten" "$work/store:v@more" >"$work/differences" || true; }
figure[diff.weald]=$(for _ in 1 2 3; do ms differ; done | median)
[ "$(wc -l <"$work/differences")" = 10 ] || die "diff found other differences"
"$weald" snapshot rm -q "$work/store:v@ten" && "$weald" snapshot rm -q "$work/store:v@more"
"$weald" umount "$work/weald"
middle=$((count / 2))
remove_weald() { "$weald" snapshot rm -q "$work/store:v@$1"; }
remove_btrfs() { btrfs -q subvolume delete "$work/btrfs/@$1" && btrfs -q subvolume sync "$work/btrfs"; }
figure[remove.weald]=$(ms remove_weald $middle)
figure[remove.btrfs]=$(ms remove_btrfs $middle)
figure[rollback.weald]=$(ms "$weald" snapshot rollback -q "$work/store:v@$count")
mount_weald
change weald 7 && "$weald" umount "$work/weald"
figure[rollback_one.weald]=$(ms "$weald" snapshot rollback -q "$work/store:v@$count")
remove_all_weald() { "$weald" snapshot prune -q --keep-last 1 "$work/store:v"; }
remove_all_btrfs() {
    local all=("$work"/btrfs/@*)
    btrfs -q subvolume delete "${all[@]}" && btrfs -q subvolume sync "$work/btrfs"
}
figure[remove_all.weald]=$(ms remove_all_weald)
figure[remove_all.btrfs]=$(ms remove_all_btrfs)
"$weald" volume check "$work/store:v" >&2
"$weald" store check "$work/store" >&2

row() {
    local weald=${figure[$1.weald]} btrfs=${figure[$1.btrfs]:-}
    printf '| %s | %s | %s | %s |\n' "$2" "$weald" "${btrfs:--}" \
        "$(awk -v a="$weald" -v b="${btrfs:-0}" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }')"
}
echo "| milliseconds; $files files, $count snapshots, $changed files changed between | Weald | btrfs | ratio |"
echo "|---|--:|--:|--:|"
row make "the tree is made"
row take "a snapshot, with none before"
row take_with "a snapshot, with $count before"
row cold "a cold walk, with none"
row cold_with "a cold walk, with $count"
row stat "2,000 cold stat, with none"
row stat_with "2,000 cold stat, with $count"
row untar "untar, with none"
row untar_with "untar, with $count"
row overwrite "8,000 random overwrites, with none"
row overwrite_with "8,000 random overwrites, with $count"
row change "the change, with none"
row change_with "the change, with $count"
row remove "one of the middle is removed"
row remove_all "all but one are removed (btrfs: all)"
row diff "diff of 10 changes"
row rollback "a rollback of nothing"
row rollback_one "a rollback of one change"
# A changed file has a row of its inode and one of its extents.
echo "bytes of meta for a kept row: $(((after - before) / (count * changed * 2)))"
"$weald" umount "$work/weald" 2>/dev/null || true
step "a day of policy: ${WEALD_DAY:-4320} snapshots, 72 kept"
cargo run --quiet --release --locked -p weald-volume --example policy_day -- \
    "$work/day" 100000 10 "${WEALD_DAY:-4320}" 100
