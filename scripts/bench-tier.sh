#!/usr/bin/env bash
# Tiers: a volume whose store has a quarter of its data on a fast disk and the rest on a slow one,
# beside the same volume on either disk alone, and mergerfs with a mover over the same two disks.
# Four profiles of iometer, all of them on a hot fifth of the data, after warming. The slow disks
# are loop devices that the kernel throttles to 150 MB/s and 150 operations a second, which is
# measured first. Prints a table with ratios.
#
# usage: bench-tier.sh [MIB [SECONDS [ROUNDS]]]
#        MIB (4096) of data that cannot be compressed for each stand, in files of 1/80 of it;
#        SECONDS (20) of each profile; ROUNDS (3), of which the median counts. Stands take turns.
#        WEALD_BENCH_MEMORY (MIB/10, at least 320) MiB of memory for each stand, its cache included.
#        Takes five times MIB on the disk of TMPDIR. '2048 5 1' takes about five minutes.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need_root bench-tier
need_fuse
need fio losetup mkfs.ext4 mergerfs python3
[ -n "${WEALD_BENCH_BUILT:-}" ] || build_programs
mib=${1:-4096}
seconds=${2:-20}
rounds=${3:-3}
memory=${WEALD_BENCH_MEMORY:-$((mib / 10 > 320 ? mib / 10 : 320))}
files=80
file_kib=$((mib * 1024 / files))
# The hot fifth: files that were written one after the other, in the middle.
hot=$(seq 33 48)
segment_mib=$((mib >= 1024 ? 64 : mib / 16 > 1 ? mib / 16 : 1))
work=$(mktemp -d "${TMPDIR:-/tmp}/weald-tier.XXXXXX")
chmod 700 "$work"
declare -a devices=() groups=()
stands="fast slow tiers mergerfs"

end() {
    local stand dir group device
    for stand in fast slow tiers; do
        "$weald" umount "$work/mnt/$stand" 2>/dev/null || true
    done
    umount "$work/mnt/mergerfs" 2>/dev/null || true
    echo $$ >"/sys/fs/cgroup/memory/cgroup.procs" 2>/dev/null || true
    for group in "${groups[@]}"; do
        rmdir "$group" 2>/dev/null || true
    done
    for device in "${devices[@]}"; do
        throttle "$device" 0 0 2>/dev/null || true
    done
    for dir in "$work"/disk/*; do
        umount "$dir" 2>/dev/null || umount -l "$dir" 2>/dev/null || true
    done
    for device in "${devices[@]}"; do
        losetup -d "$device" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap end EXIT

# disk NAME MIB: an ext4 of this size on a loop device, mounted on disk/NAME; $device is set.
disk() {
    truncate -s "${2}M" "$work/$1.img"
    device=$(losetup -f --show --direct-io=on "$work/$1.img")
    devices+=("$device")
    mkfs.ext4 -q -m 0 -O ^has_journal "$device"
    mkdir -p "$work/disk/$1"
    mount -o strictatime "$device" "$work/disk/$1"
}

# throttle DEVICE BYTES OPERATIONS: limits reads and writes in a second; 0 lifts the limits.
throttle() {
    local number group way
    number=$(lsblk -no MAJ:MIN "$1" | tr -d ' ')
    if [ -e /sys/fs/cgroup/blkio/blkio.throttle.read_iops_device ]; then
        # Writeback is done by the kernel, which belongs to the root.
        for way in read write; do
            echo "$number $2" >/sys/fs/cgroup/blkio/blkio.throttle.${way}_bps_device
            echo "$number $3" >/sys/fs/cgroup/blkio/blkio.throttle.${way}_iops_device
        done
        return
    fi
    group=/sys/fs/cgroup/weald-bench-tier
    mkdir -p "$group"
    echo +io >/sys/fs/cgroup/cgroup.subtree_control
    [ "$2" != 0 ] || { echo "$number rbps=max wbps=max riops=max wiops=max" >"$group/io.max" && return; }
    echo "$number rbps=$2 wbps=$2 riops=$3 wiops=$3" >"$group/io.max"
    echo $$ >"$group/cgroup.procs"
}

# fio_figure FIELDS FIO-ARGUMENTS...: the sum of fields of fio's JSON, as jobs[0].read.iops.
fio_figure() {
    local fields=$1
    shift
    fio --output-format=json --output="$work/fio.json" "$@" >/dev/null
    python3 -I - "$work/fio.json" "$fields" <<'PYTHON'
import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
print(round(sum(job[way][field] for way, field in (f.split(".") for f in sys.argv[2].split(","))), 1))
PYTHON
}

# Fails unless the disk below a directory does 150 operations a second, read and written.
check_throttle() {
    local read write
    read=$(fio_figure read.iops --name=probe --directory="$1" --size=8M --bs=4k --rw=randread \
        --direct=1 --time_based --runtime=2)
    write=$(fio_figure write.iops --name=probe --directory="$1" --size=8M --bs=4k --rw=randwrite \
        --direct=1 --time_based --runtime=2)
    rm -f "$1"/probe*
    say "the slow disk: $read reads and $write writes of 4 KiB a second"
    awk -v r="$read" -v w="$write" 'BEGIN { exit !(r > 75 && r < 200 && w > 75 && w < 200) }' ||
        die "the kernel does not throttle loop devices here: 150 operations a second were asked for"
}

# Runs a command in the memory of a stand, which its cache counts to.
in_memory_of() {
    local group=/sys/fs/cgroup/memory/weald-bench-tier-$1
    shift
    [ ! -e "$group/cgroup.procs" ] || set -- bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
    "$@"
}
limit_memory() {
    local stand group
    for stand in $stands; do
        group=/sys/fs/cgroup/memory/weald-bench-tier-$stand
        mkdir "$group" 2>/dev/null && groups+=("$group") || {
            say "no memory cgroups of version 1: the page cache is not limited"
            return
        }
        echo $((memory << 20)) >"$group/memory.limit_in_bytes"
    done
}

store_of() { [ "$1" = tiers ] && echo "$work/disk/tiers-fast/store" || echo "$work/disk/$1/store"; }
make_volume() {
    "$weald" store create -q --segment-size "${segment_mib}M" "$(store_of "$1")"
    "$weald" volume create -q "$(store_of "$1"):v"
    mkdir -p "$work/mnt/$1"
}
mount_volume() { in_memory_of "$1" "$weald" mount "$(store_of "$1"):v" "$work/mnt/$1"; }

fill() {
    local number
    for ((number = 0; number < files; number++)); do
        head -c "${file_kib}K" /dev/urandom >"$work/mnt/$1/$number"
    done
    sync -f "$work/mnt/$1/0"
}

# The mover beside mergerfs: what was used last lies on the fast disk, as far as three quarters of
# it reach; everything else on the slow one.
move_by_age() {
    python3 -I - "$work/disk/mergerfs-fast" "$work/disk/mergerfs-slow" $((quarter * 1024 * 1024)) <<'PYTHON'
import os, shutil, sys
fast, slow, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
found = []
for place in fast, slow:
    for name in os.listdir(place):
        if name.isdigit():
            stat = os.stat(f"{place}/{name}")
            found.append((stat.st_atime_ns, name, place, stat.st_size))
found.sort(reverse=True)
up, down = [], []
for _, name, place, size in found:
    room -= size
    if room >= 0 and place == slow:
        up.append(name)
    if room < 0 and place == fast:
        down.append(name)
for names, source, target in (down, fast, slow), (up, slow, fast):
    for name in names:
        shutil.copy2(f"{source}/{name}", f"{target}/{name}")
        os.remove(f"{source}/{name}")
PYTHON
}

hot_names() {
    local names='' number
    for number in $hot; do
        names+=":$work/mnt/$1/$number"
    done
    echo "${names#:}"
}

# profile STAND NAME: bytes or operations a second.
profile() {
    local fields rw
    sync
    echo 3 >/proc/sys/vm/drop_caches
    case $2 in
    "sequential read") fields=read.bw_bytes rw=(--rw=read --bs=1M --file_service_type=sequential) ;;
    "sequential write") fields=write.bw_bytes rw=(--rw=write --bs=1M --file_service_type=sequential --end_fsync=1) ;;
    "random read") fields=read.iops rw=(--rw=randread --bs=4k --file_service_type=random) ;;
    "random mixed") fields=read.iops,write.iops rw=(--rw=randrw --rwmixread=67 --bs=4k --file_service_type=random --end_fsync=1) ;;
    esac
    in_memory_of "$1" bash -c "$(declare -f fio_figure); work='$work'; fio_figure \"\$@\"" - "$fields" \
        --name=hot --filename="$(hot_names "$1")" --size=$((file_kib * 16))K --invalidate=1 \
        --ioengine=psync --time_based --runtime="$seconds" --allow_file_create=0 \
        --randrepeat=0 --group_reporting "${rw[@]}"
}

quarter=$((mib / 4))
slack=$((160 + mib / 8))
step "four stands with $mib MiB each, segments of $segment_mib MiB, $memory MiB of memory"
limit_memory
disk fast $((mib + mib / 2 + slack))
disk slow $((mib + mib / 2 + slack))
slow_devices=("$device")
# Room for what is being moved or collected is counted to the fast disk of both.
disk tiers-fast $((quarter + slack))
disk tiers-slow $((mib + mib / 2 + slack))
slow_devices+=("$device")
disk mergerfs-fast $((quarter + slack))
disk mergerfs-slow $((mib + mib / 2 + slack))
slow_devices+=("$device")
for stand in fast slow tiers; do
    make_volume $stand
done
"$weald" tier add -q "$(store_of tiers)" "$work/disk/tiers-slow/tier" --name slow --hits 30
for stand in fast slow tiers; do
    mount_volume $stand
done
mkdir -p "$work/mnt/mergerfs"
in_memory_of mergerfs mergerfs -o "category.create=ff,moveonenospc=true,minfreespace=${slack}M,cache.files=off" \
    "$work/disk/mergerfs-fast:$work/disk/mergerfs-slow" "$work/mnt/mergerfs"
for stand in $stands; do
    timed fill $stand
done
for device in "${slow_devices[@]}"; do
    throttle "$device" 150000000 150
done
check_throttle "$work/disk/slow"

step "warming: random reads of the hot fifth, and moves"
# What nobody reads leaves the fast disk, and what is read comes.
"$weald" tier set "$(store_of tiers)" home --max-age 5s --reserve 64M
saved=$seconds
seconds=$((seconds < 5 ? 5 : seconds))
for _ in 1 2 3; do
    for stand in tiers mergerfs; do
        profile $stand "random read" >/dev/null
    done
    "$weald" tier run -q "$(store_of tiers)" || true
    move_by_age
done
seconds=$saved
"$weald" tier set "$(store_of tiers)" home --max-age 0
"$weald" tier stat "$(store_of tiers)" >&2

declare -A figure=()
# Reads first: what is written is settled and collected for a while.
profiles=("random read" "sequential read" "sequential write" "random mixed")
for name in "${profiles[@]}"; do
    for ((round = 0; round < rounds; round++)); do
        for stand in $stands; do
            figure[$name.$stand]+="$(profile $stand "$name") "
        done
    done
    say "$name: $(for stand in $stands; do echo -n "$stand ${figure[$name.$stand]}; "; done)"
done
median() { tr ' ' '\n' <<<"$1" | grep . | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }
echo "| $mib MiB, a fifth is hot, a quarter fits | fast alone | slow alone | tiers | mergerfs | tiers/fast | tiers/slow | tiers/mergerfs |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|"
for name in "${profiles[@]}"; do
    case $name in
    sequential*) unit=1000000 words="$name, MB/s" ;;
    *) unit=1 words="$name, operations/s" ;;
    esac
    declare -A row=()
    for stand in $stands; do
        row[$stand]=$(median "${figure[$name.$stand]}")
    done
    printf '| %s |' "$words"
    for stand in $stands; do
        printf ' %s |' "$(awk -v a="${row[$stand]}" -v u=$unit 'BEGIN { printf "%.0f", a / u }')"
    done
    for other in fast slow mergerfs; do
        printf ' %s |' "$(ratio "${row[tiers]}" "${row[$other]}")"
    done
    echo
done
for device in "${slow_devices[@]}"; do
    throttle "$device" 0 0
done
for stand in fast slow tiers; do
    "$weald" umount "$work/mnt/$stand"
    status=0
    "$weald" store check -q "$(store_of $stand)" >"$work/findings" || status=$?
    [ $status != 1 ] || die "$stand: the store is damaged: $(head -n 3 "$work/findings")"
    [ $status = 0 ] || say "$stand: the store could not be checked"
done
