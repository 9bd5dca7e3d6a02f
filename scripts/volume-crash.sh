#!/bin/bash
# volume-crash.sh [PART...]: kills servers of mounted volumes under load, and compares what is left
# with what the load did: kills, cuts, full, memory, ends. Without arguments, all of them.
# WEALD_KILLS (20) and WEALD_CUTS (5) say how often. cuts takes the power of an ext4 file system away
# (EXT4_IOC_SHUTDOWN). Needs root.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need_root "making devices"
need_fuse
need python3 losetup mkfs.ext4
kills=${WEALD_KILLS:-20}
cuts=${WEALD_CUTS:-5}
seed=${WEALD_SEED:-$((SRANDOM % 1000000))}
RANDOM=$seed

# random_seconds MAX: a number of seconds with two decimals, below MAX seconds.
random_seconds() { awk -v n="$((RANDOM % 1000))" -v max="$1" 'BEGIN { printf "%.2f", n * max / 1000 }'; }

mount_volume() {
    local started=$EPOCHREALTIME
    "$weald" mount "$volume" "$work/mnt" -o "commit-interval=0.$((1 + RANDOM % 9))" "$@"
    open_time=$(since "$started")
    awk -v t="$open_time" -v max="$slowest" 'BEGIN { exit !(t > max) }' && slowest=$open_time || true
}

server_pid() {
    "$weald" volume info --json "$volume" | python3 -I -c 'import json, sys; print(json.load(sys.stdin)["server_pid"])'
}

# stop_server SIGNAL PID: sends the signal, unless the process is gone, and waits until it is.
stop_server() {
    kill "$1" "$2" 2>/dev/null || true
    for _ in $(seq 6000); do
        kill -0 "$2" 2>/dev/null || return 0
        sleep 0.01
    done
    die "process $2 did not end within a minute"
}

# begin_load COUNT: COUNT loads, each in a directory of its own.
begin_load() {
    local number
    loads=()
    rm -f "$work"/log-*
    for number in $(seq "$1"); do
        seed=$((seed + 1))
        mkdir "$work/mnt/$seed"
        "$bin/crash_load" run "$work/mnt/$seed" "$seed" "$work/log-$seed" >"$work/said-$seed" 2>&1 &
        loads+=("$!")
    done
}

# Waits until each load is at work.
await_load() {
    until [ "$(find "$work" -maxdepth 1 -name 'log-*' -size +0 | wc -l)" = "${#loads[@]}" ]; do sleep 0.02; done
}

end_load() { wait "${loads[@]}"; }

# judge_loads [all]: compares what is left with the logs; all: no call may be lost.
judge_loads() {
    local log number said
    for log in "$work"/log-*; do
        number=${log##*-}
        said=$("$bin/crash_load" judge "$work/mnt/$number" "$number" "$log") ||
            die "seed $number: the volume lost synced calls, or kept a later call without an earlier one"
        read -r survived _ made _ <<<"$said"
        calls=$((calls + made))
        lost=$((lost + (made > survived ? made - survived : 0)))
        if [ "${1:-}" = all ] && [ "$survived" -lt "$made" ]; then die "seed $number: $said"; fi
    done
}

# take_snapshots ROUND: takes snapshots below the loads until there is a file stop. What the loads
# had synced before each is in snap-NAME-NUMBER, and the names of those that were taken are in taken.
take_snapshots() {
    local name count=0 log
    until [ -e "$work/stop" ]; do
        count=$((count + 1))
        name=r$1-$count
        for log in "$work"/log-*; do cp "$log" "$work/snap-$name-${log##*-}"; done
        # The server may end meanwhile.
        ! "$weald" snapshot create -q "$volume@$name" 2>"$work/said-snapshot" || echo "$name" >>"$work/taken"
        sleep "$(random_seconds 1.2)"
    done
}

# end_snapshots: appends the end of each load to what was noted before each of its snapshots.
end_snapshots() {
    local log noted
    for log in "$work"/log-*; do
        for noted in "$work"/snap-*-"${log##*-}"; do
            [ ! -e "$noted" ] || grep '^end ' "$log" >>"$noted"
        done
    done
}

# judge_snapshots: compares all snapshots that there are with what the loads had done.
judge_snapshots() {
    local name noted number
    "$weald" snapshot ls --json "$volume" | python3 -I -c '
import json, sys
for line in sys.stdin:
    print(json.loads(line)["name"])' >"$work/listed"
    while read -r name; do
        grep -qx -- "$name" "$work/listed" || die "snapshot $name was taken, and is not there"
    done <"$work/taken"
    while read -r name; do
        for noted in "$work/snap-$name"-*; do
            number=${noted##*-}
            "$bin/crash_load" judge "$work/mnt/.snapshots/$name/$number" "$number" "$noted" >/dev/null ||
                die "seed $number: snapshot $name is no moment of the load after its last sync"
            judged=$((judged + 1))
        done
    done <"$work/listed"
}

begin_part() {
    step "$1, WEALD_SEED=$seed"
    slowest=0 calls=0 lost=0
}

end_part() {
    "$weald" umount "$work/mnt"
    "$weald" volume check --data "$volume" >&2
    say "$1: $calls calls, $lost of them not synced and lost, nothing else; slowest mount $slowest s"
}

# unmount_dead: takes the mount of a server that is gone away.
unmount_dead() { umount --lazy "$work/mnt"; }

try_kills() {
    begin_part "$kills servers are killed"
    "$weald" store create "$work/store"
    volume=$work/store:v
    "$weald" volume create "$volume"
    local round taker judged=0
    : >"$work/taken"
    for round in $(seq "$kills"); do
        mount_volume
        begin_load 2
        await_load
        rm -f "$work/stop"
        take_snapshots "$round" &
        taker=$!
        sleep "$(random_seconds 1.5)"
        stop_server -9 "$(server_pid)"
        unmount_dead
        touch "$work/stop"
        end_load
        wait "$taker"
        end_snapshots
        mount_volume
        judge_loads
        judge_snapshots
        "$weald" snapshot prune -q --keep-last 1 "$volume"
        tail -n 1 "$work/listed" >"$work/taken"
        if ((round % 5 == 0)); then find "$work/mnt" -mindepth 1 -delete; fi
        "$weald" umount "$work/mnt"
        if ((round % 20 == 0)); then "$weald" volume check "$volume" >&2; fi
    done
    mount_volume
    say "kills: snapshots were judged $judged times"
    ((judged > kills)) || die "too few snapshots were taken"
    end_part "$kills kills"
}

# make_disk MEGABYTES: an ext4 file system in a file, mounted at $work/disk.
make_disk() {
    mkdir -p "$work/disk"
    truncate -s "$1M" "$work/disk.img"
    mkfs.ext4 -q -F "$work/disk.img"
    mount -o loop "$work/disk.img" "$work/disk"
    "$weald" store create "$work/disk/store"
    volume=$work/disk/store:v
    "$weald" volume create "$volume"
}

end_disk() { umount "$work/disk" && rm "$work/disk.img"; }

# cut_power: the file system of the store loses what was not written, and takes nothing any more.
cut_power() {
    python3 -I - "$work/disk" <<'PYTHON'
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
disk = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(disk, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
PYTHON
}

try_cuts() {
    begin_part "the power of the disk is cut $cuts times"
    make_disk 1500
    local round server
    for round in $(seq "$cuts"); do
        mount_volume
        begin_load 2
        sleep "$(random_seconds 2)"
        server=$(server_pid)
        cut_power
        end_load
        stop_server -9 "$server"
        unmount_dead
        while ! umount "$work/disk" 2>/dev/null; do sleep 0.05; done
        # A mount namespace of another program may keep the file system, without power, for a while.
        while [ -n "$(losetup -j "$work/disk.img")" ]; do sleep 0.05; done
        mount -o loop "$work/disk.img" "$work/disk"
        mount_volume
        judge_loads
        find "$work/mnt" -mindepth 1 -delete
        "$weald" umount "$work/mnt"
        "$weald" volume check "$volume" >&2
    done
    mount_volume
    end_part "$cuts power cuts"
    end_disk
}

# A disk that fills under load: the load gets ENOSPC, nothing is lost, and removing makes room.
try_full() {
    begin_part "the disk is full"
    make_disk 400
    mount_volume
    begin_load 2
    dd if=/dev/urandom of="$work/mnt/fill" bs=1M status=none 2>"$work/dd.err" || true
    grep -q "No space left" "$work/dd.err" || die "dd said: $(cat "$work/dd.err")"
    end_load
    grep -q "No space left" "$work"/said-* || die "the load said: $(cat "$work"/said-*)"
    judge_loads all
    sync "$work/mnt" || die "a sync on a full disk failed"
    stop_server -9 "$(server_pid)"
    unmount_dead
    mount_volume
    judge_loads all
    rm "$work/mnt/fill"
    sync "$work/mnt"
    dd if=/dev/urandom of="$work/mnt/again" bs=1M count=100 status=none || die "removing a file made no room"
    end_part "full disk"
    end_disk
}

memory_group=
make_group() {
    if [ -d /sys/fs/cgroup/memory ]; then
        memory_group=/sys/fs/cgroup/memory/weald-$$
        mkdir "$memory_group"
        echo "$1" >"$memory_group/memory.limit_in_bytes"
    else
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control || true
        memory_group=/sys/fs/cgroup/weald-$$
        mkdir "$memory_group"
        echo "$1" >"$memory_group/memory.max"
    fi
}

# A group of processes with little memory: the volume works within it. With much too little, the
# kernel kills the server, and nothing that was synced is lost.
try_memory() {
    begin_part "memory is short"
    make_disk 1500
    make_group $((300 << 20))
    (echo $BASHPID >"$memory_group/cgroup.procs" && exec "$weald" mount "$volume" "$work/mnt" -o commit-interval=1)
    begin_load 2
    dd if=/dev/urandom of="$work/mnt/unique" bs=1M count=600 status=none
    dd if=/dev/zero of="$work/mnt/zeros" bs=1M count=600 status=none
    local server
    server=$(server_pid)
    say "peak of the server: $(awk '/VmHWM/ { print $2 / 1024 " MiB" }' "/proc/$server/status")"
    stop_server -9 "$server"
    unmount_dead
    end_load
    mount_volume
    judge_loads
    find "$work/mnt" -mindepth 1 -delete
    "$weald" umount "$work/mnt"
    rmdir "$memory_group"
    make_group $((16 << 20))
    (echo $BASHPID >"$memory_group/cgroup.procs" && exec "$weald" mount "$volume" "$work/mnt" -o commit-interval=1)
    server=$(server_pid)
    begin_load 2
    dd if=/dev/urandom of="$work/mnt/unique" bs=1M count=200 status=none 2>/dev/null || true
    stop_server -9 "$server"
    unmount_dead
    end_load
    mount_volume
    judge_loads
    rmdir "$memory_group"
    end_part "short memory"
    end_disk
}

# Orderly ends under load lose nothing.
try_ends() {
    begin_part "the server ends under load"
    make_disk 1500
    mount_volume
    begin_load 2
    await_load
    exec 9>"$work/mnt/open"
    if "$weald" umount "$work/mnt" 2>"$work/umount.err"; then die "a mount in use was unmounted"; fi
    grep -q . "$work/umount.err" || die "umount gave no reason"
    exec 9>&-
    stop_server -TERM "$(server_pid)"
    end_load
    while mountpoint -q "$work/mnt"; do umount --lazy "$work/mnt" || true; sleep 0.1; done
    mount_volume
    judge_loads all
    begin_load 2
    await_load
    umount --lazy "$work/mnt"
    end_load
    while ! "$weald" mount "$volume" "$work/mnt" 2>/dev/null; do sleep 0.1; done
    judge_loads all
    end_part "orderly ends"
    end_disk
}

build_programs
make_work
mkdir "$work/mnt"
for part in "${@:-kills cuts full memory ends}"; do
    for name in $part; do "try_$name"; done
done
