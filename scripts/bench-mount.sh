#!/bin/bash
# bench-mount.sh: mounts beside those of the kernel and beside a stub without an image, as Markdown: to standard output and to results-mount.md.
#   WEALD_BENCH_DIR     where results and the log go (./bench-out)
#   WEALD_BENCH_PARTS   parts to run (meta read dir start many through)
#   WEALD_BENCH_ROOM    directory for images and loop files (a temporary one)
#   WEALD_BENCH_CACHE   where fetched programs stay between runs (bench-out/executables)
#   WEALD_FOREST        a forest that is there already, made by bench/make-forest.sh of forest-small.list
# docs/benchmarks.md says what each workload means.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=measure.sh
. "$(dirname "$0")/measure.sh"
# shellcheck source=many.sh
. "$(dirname "$0")/many.sh"

RUNS=3
META_ROUNDS=5
START_ROUNDS=9
WARM_STARTS=3
LOOK_UPS=20000
RANDOM_READS=400
IN_ORDER_ROUNDS=9
MANY=100
MANY_ROUNDS=4
MANY_CACHE_MIB=64
STARTS_AT_ONCE=20
START_LABELS='default.weald interactive.weald 128K.squashfs 1M.squashfs plain.ext4'
SLOW_MIB=200
META_DIRS=1000
META_FILES=1000

out=${WEALD_BENCH_DIR:-$root/bench-out}
parts=${WEALD_BENCH_PARTS:-meta read dir start many through}
cache=${WEALD_BENCH_CACHE:-$out/executables}

least() { printf '%s\n' "$@" | sort -g | head -n1; }

# per A B FORMAT: A divided by B.
per() { awk -v a="$1" -v b="$2" -v form="$3" 'BEGIN { printf form, a / (b > 0 ? b : 1) }'; }

# CPU seconds of the server, $driver, or 0 where the kernel serves.
driver_cpu() {
    [ -n "$driver" ] || { echo 0 && return; }
    awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); printf "%.2f", ($12 + $13) / hz }' "/proc/$driver/stat"
}

# serve KIND IMAGE [WORD...]: mounts on $work/mnt. Kinds: weald and stub, which are served by $driver; dir, bound; what the kernel knows.
serve() {
    local kind=$1 image=$2
    shift 2
    driver=
    case $kind in
    weald) "$weald" mount --foreground "$@" "$image" "$work/mnt" >>"$out/log" 2>&1 & driver=$! ;;
    stub) "$stub" "$work/mnt" $META_DIRS $META_FILES 0 >>"$out/log" 2>&1 & driver=$! ;;
    dir) mount --bind "$image" "$work/mnt" ;;
    *) mount -t "$kind" -o loop,ro "$image" "$work/mnt" ;;
    esac
    until mountpoint -q "$work/mnt"; do
        [ -e "/proc/$driver/fd" ] || die "the mount of $image failed: see $out/log"
        sleep 0.01
    done
}

unserve() {
    umount "$work/mnt"
    [ -z "$driver" ] || wait "$driver" || true
}

# on_mount KIND IMAGE MODE COMMAND...: seconds and CPU of the machine of a command on a new mount, the least of several; cold: nothing of it in
# memory; pages: the image itself is; warm: the second time. Sets $wall, $cpu and $driver_part, the share of the server.
on_mount() {
    local kind=$1 image=$2 mode=$3 walls=() cpus=() parts=() before
    shift 3
    for _ in $(seq $RUNS); do
        drop_caches
        # shellcheck disable=SC2086 # words
        serve "$kind" "$image" ${words:-}
        case $mode in
        pages) if [ -f "$image" ]; then cat "$image" >/dev/null; fi ;;
        warm) "$@" ;;
        esac
        before=$(driver_cpu)
        measure_machine "$@"
        walls+=("$wall") cpus+=("$cpu") parts+=("$(minus "$(driver_cpu)" "$before")")
        unserve
    done
    wall=$(least "${walls[@]}") cpu=$(least "${cpus[@]}") driver_part=$(least "${parts[@]}")
}

walk() { find "$work/mnt" -printf '%s\n' >/dev/null; }

list() { ls -lR "$work/mnt" >/dev/null; }

look_up() { python3 "$root/bench/paths.py" "$work/mnt" <"$work/paths" >"$work/look-up"; }

# requests: how many the server of $work/mnt has answered.
requests() { "$weald" mounts --json | grep '"type":"mount"' | grep -F "\"$work/mnt\"" | grep -o '"request_count":[0-9]*' | cut -d: -f2; }

# random_order: lines that end in zero bytes, always in the same random order.
random_order() { shuf -z --random-source=<(openssl enc -aes-128-ctr -pass pass:1 -nosalt -pbkdf2 -iter 1 </dev/zero 2>/dev/null); }

# make_meta: images of the names that the stub has, with the time that it tells (ls prints it), all of empty files, as $work/meta.KIND, and a list
# of paths to ask for.
make_meta() {
    local kind seen=()
    # Not every awk can print a zero byte.
    awk -v dirs=$META_DIRS -v files=$META_FILES 'BEGIN { for (d = 0; d < dirs; d++) for (f = 0; f < files; f++) printf "d%07d/f%07d\n", d, f }' |
        tr '\n' '\0' >"$work/all"
    "$weald" build --quiet --from listing --mtime 1700000000 - "$work/meta.weald" <"$work/all"
    mkdir "$work/memory"
    mount -t tmpfs -o size=8g,nr_inodes=0 weald-bench "$work/memory"
    "$weald" extract --quiet "$work/meta.weald" "$work/memory/tree"
    mksquashfs "$work/memory/tree" "$work/meta.squashfs" -comp zstd -no-progress -quiet >>"$out/log"
    mkfs.erofs --quiet "$work/meta.erofs" "$work/memory/tree" >>"$out/log"
    umount "$work/memory"
    random_order <"$work/all" | head -z -n $LOOK_UPS >"$work/paths" || true
    rm "$work/all"
    for kind in weald stub; do
        serve $kind "$work/meta.$kind"
        seen+=("$(cd "$work/mnt" && stat -c '%n %F %a %u %s %Y' d0000000/f0000000 "$(printf 'd%07d/f%07d' $((META_DIRS - 1)) $((META_FILES - 1)))")")
        unserve
    done
    [ "${seen[0]}" = "${seen[1]}" ] || die "the stub has another tree: ${seen[*]}"
}

# meta_round KIND: adds what a walk, a list and look-ups take on new mounts to times[KIND.…]; those are numbers side by side.
meta_round() {
    local kind=$1 what RUNS=1
    say "   $kind"
    for what in walk list look_up; do
        on_mount "$kind" "$work/meta.$kind" cold $what
        if [ $what = look_up ]; then wall=$(cat "$work/look-up"); fi
        times[$kind.$what.wall]+=" $wall" times[$kind.$what.cpu]+=" $cpu" times[$kind.$what.server]+=" $driver_part"
    done
}

meta_part() {
    local kind what before left round
    local -A found times
    step 'metadata of 10^6 entries'
    make_meta
    printf '\n## Metadata of 10^6 entries, cold: Weald and the stub by turns, medians of %s; the others once\n' $META_ROUNDS
    table 'file system' 'find -printf %s, s' 'CPU s' 'of it the server' 'ls -lR, s' 'CPU s' 'of it the server' 'stat of a random path, us'
    for round in $(seq $META_ROUNDS); do
        for kind in weald stub; do meta_round $kind; done
    done
    for kind in squashfs erofs; do meta_round $kind; done
    for kind in weald stub squashfs erofs; do
        local cells=()
        for what in walk.{wall,cpu,server} list.{wall,cpu,server} look_up.wall; do
            # shellcheck disable=SC2086 # numbers
            found[$kind.$what]=$(median ${times[$kind.$what]})
            cells+=("${found[$kind.$what]}")
        done
        row $kind "${cells[@]}"
    done
    for what in walk list; do
        verdict_least "$what, cold: rate against the stub" "$(ratio "${found[stub.$what.wall]}" "${found[weald.$what.wall]}")" 0.95
        verdict "$what, cold: time against SquashFS" "$(ratio "${found[weald.$what.wall]}" "${found[squashfs.$what.wall]}")" 1.00
    done
    verdict 'stat of random paths, cold: time against the stub' "$(ratio "${found[weald.look_up.wall]}" "${found[stub.look_up.wall]}")" 1.2
    printf '\nRequests that reach the server the second time:\n'
    table workload 'first time' 'second time'
    serve weald "$work/meta.weald"
    for what in look_up walk; do
        before=$(requests)
        $what
        left=$(requests)
        $what
        row $what $((left - before)) $(($(requests) - left))
        if [ $what = look_up ]; then verdict "$what, warm: requests" $(($(requests) - left)) 0; fi
    done
    unserve
    rm "$work"/meta.*
}

read_big() { dd if="$work/mnt/big" of=/dev/null bs=1M status=none; }

random_reads() { python3 "$root/bench/random-read.py" "$work/mnt/big" $RANDOM_READS; }

read_dir() { tar -C "$work/mnt/$dir" -c . | cat >/dev/null; }

# rate WALL: GB/s of a GiB.
rate() { per 1.073741824 "$1" '%.2f'; }

sequential() {
    local stub_rate raw_rate zstd_wall check_wall cell
    mkdir "$work/raw" "$work/text"
    head -c 1G /dev/urandom >"$work/raw/big"
    tar --sort=name -C / -c usr/lib usr/share usr/bin 2>/dev/null | head -c 1G >"$work/text/big" || true
    "$weald" build --quiet "$work/raw" "$work/raw.weald"
    "$weald" build --quiet "$work/text" "$work/text.weald"
    "$weald" build --quiet --profile interactive "$work/text" "$work/quick.weald"
    mksquashfs "$work/text" "$work/text.squashfs" -comp zstd -b 1M -no-progress -quiet >>"$out/log"
    rm -r "$work/raw" "$work/text"
    printf '\n### A GiB in order, the image in the page cache: by turns, medians of %s\n' $IN_ORDER_ROUNDS
    local what round RUNS=1
    local -A found times
    local labels='stub raw.weald text.weald quick.weald text.squashfs'
    for round in $(seq $IN_ORDER_ROUNDS); do
        say "   round $round"
        for what in $labels; do
            on_mount "${what##*.}" "$work/$what" pages read_big
            times[$what.wall]+=" $wall" times[$what.cpu]+=" $cpu" times[$what.server]+=" $driver_part"
        done
        cat "$work/text.weald" >/dev/null
        measure "$weald" check --quiet "$work/text.weald"
        times[check.wall]+=" $wall" times[check.cpu]+=" $cpu"
    done
    table what s GB/s 'CPU s' 'of it the server'
    for what in $labels check; do
        # shellcheck disable=SC2086 # numbers
        for cell in wall cpu server; do found[$what.$cell]=$(median ${times[$what.$cell]:-0}); done
        row "${what/#check/weald check of text.weald, all processors}" "${found[$what.wall]}" "$(rate "${found[$what.wall]}")" "${found[$what.cpu]}" "${found[$what.server]}"
    done
    stub_rate=$(rate "${found[stub.wall]}") raw_rate=$(rate "${found[raw.weald.wall]}")
    zstd_wall=${found[text.weald.wall]} check_wall=${found[check.wall]}
    if awk -v a="$raw_rate" 'BEGIN { exit !(a >= 2.5) }'; then
        verdict_least 'stored raw, in order, GB/s' "$raw_rate" 2.5
    else
        verdict_least 'stored raw, in order: rate against the stub' "$(ratio "$raw_rate" "$stub_rate")" 0.90
    fi
    verdict_least 'zstd, in order: rate against weald check on all processors' "$(ratio "$check_wall" "$zstd_wall")" 0.90
}

random_part() {
    local image each limit
    printf '\n### 4 KiB at %s random places of a GiB, cachesize=16M\n' $RANDOM_READS
    table image 'CPU of the server, ms each' 'wall, ms each'
    for image in text quick; do
        words='-o cachesize=16M' on_mount weald "$work/$image.weald" cold random_reads
        each=$(per "$(scaled "$driver_part" 1000 '%.1f')" $RANDOM_READS '%.2f')
        row "${image/#text/default profile}" "$each" "$(per "$(scaled "$wall" 1000 '%.1f')" $RANDOM_READS '%.2f')"
        limit=5
        if [ $image = quick ]; then limit=0.6; fi
        verdict "random 4 KiB, $image: CPU ms" "$each" $limit
    done
}

# forest_dir: the directory of the forest that has most nearly 8,000 files below it, relative to the forest.
forest_dir() {
    (cd "$forest" && find . -type f -printf '%h\n') | awk -F/ '
        { path = $2; for (i = 3; i <= NF && i <= 6; i++) { count[path]++; path = path "/" $i } count[path]++ }
        END { for (p in count) { d = count[p] > 8000 ? count[p] - 8000 : 8000 - count[p]; if (name == "" || d < best || d == best && p < name) { best = d; name = p } } print name }'
}

dir_part() {
    local label kind image
    local -A found
    step 'a directory of a forest'
    forest=${WEALD_FOREST:-$out/forest}
    if [ ! -d "$forest" ]; then bash "$root/bench/make-forest.sh" "$root/bench/forest-small.list" "$forest" >>"$out/log" 2>&1; fi
    dir=$(forest_dir)
    "$weald" build --quiet "$forest" "$work/forest.weald"
    "$weald" build --quiet --order path "$forest" "$work/forest-path.weald"
    mksquashfs "$forest" "$work/forest.squashfs" -comp zstd -b 1M -Xcompression-level 22 -no-progress -quiet >>"$out/log"
    printf '\n## %s of the forest, %s files, cold\n' "$dir" "$(find "$forest/$dir" -type f | wc -l)"
    table image s 'CPU s' 'of it the server'
    for label in forest.weald forest-path.weald forest.squashfs; do
        kind=${label##*.} image=$work/$label
        on_mount "$kind" "$image" cold read_dir
        found[$label]=$wall
        row "$label" "$wall" "$cpu" "$driver_part"
    done
    verdict 'a directory of the forest: time against path order' "$(ratio "${found[forest.weald]}" "${found[forest-path.weald]}")" 2.0
    verdict 'a directory of the forest: time against SquashFS' "$(ratio "${found[forest.weald]}" "${found[forest.squashfs]}")" 1.00
    rm "$work"/forest*
}

read_part() {
    step reading
    printf '\n## Reading\n'
    sequential
    random_part
    rm "$work"/*.weald "$work/text.squashfs"
}

# slow_storage: from here on this shell, and what it starts, reads no more than SLOW_MIB MiB/s from the disk of $work; full_storage: as before.
# What is "cold" for us may lie in the memory of the host of a virtual machine, and then storage seems to be for free.
slow_storage() {
    local device
    device=$(findmnt -nro MAJ:MIN -T "$work")
    if [ -e "/sys/dev/block/$device/partition" ]; then device=$(cat "/sys/dev/block/$device/../dev"); fi
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        home=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
        group=/sys/fs/cgroup/weald-bench-$$
        echo +io >/sys/fs/cgroup/cgroup.subtree_control
        mkdir "$group"
        echo "$device rbps=$((SLOW_MIB << 20))" >"$group/io.max"
    else
        home=/sys/fs/cgroup/blkio$(sed -n 's/^[0-9]*:blkio://p' /proc/self/cgroup)
        group=/sys/fs/cgroup/blkio/weald-bench-$$
        mkdir "$group"
        echo "$device $((SLOW_MIB << 20))" >"$group/blkio.throttle.read_bps_device"
    fi
    echo $$ >"$group/cgroup.procs"
}

full_storage() {
    [ -d "${group:-}" ] || return 0
    echo $$ >"$home/cgroup.procs"
    rmdir "$group"
}

start_all() {
    # shellcheck disable=SC2016 # for the inner shell
    find "$work/mnt" -type f -perm -100 -print0 | xargs -0 -n 1 -P $STARTS_AT_ONCE sh -c '"$0" --version >/dev/null'
}

# make_programs: $work/programs, one file each.
make_programs() {
    local file
    bash "$root/bench/make-forest.sh" "$root/bench/executables.list" "$cache" >>"$out/log" 2>&1
    mkdir "$work/programs"
    while read -r file; do
        install -m 755 "$file" "$work/programs/$(sed "s|^$cache/||; s|/|-|g" <<<"$file")"
    done < <(find "$cache" -type f \( -path '*/bin/esbuild' -o -path '*/scripts/ruff' \))
}

# start_round LABEL: adds what the starts of all programs take on a new mount, cold and then warm, to times[LABEL.…]; those are numbers side by side.
start_round() {
    local label=$1 before _
    drop_caches
    serve "${label##*.}" "$work/$label"
    before=$(driver_cpu)
    measure_machine start_all
    times[$label.cold]+=" $wall" times[$label.cpu]+=" $cpu" times[$label.server]+=" $(minus "$(driver_cpu)" "$before")"
    for _ in $(seq $WARM_STARTS); do
        measure_machine start_all
        times[$label.warm]+=" $wall" times[$label.warm_cpu]+=" $cpu"
    done
    unserve
}

start_part() {
    local label labels what round
    local -A found times
    read -ra labels <<<"$START_LABELS"
    step 'starting programs'
    make_programs
    printf '\n## Starting %s programs, %s at a time: by turns, medians of %s cold and %s warm\n' "$(find "$work/programs" -type f | wc -l)" $STARTS_AT_ONCE \
        $START_ROUNDS $((START_ROUNDS * WARM_STARTS))
    "$weald" build --quiet "$work/programs" "$work/default.weald"
    "$weald" build --quiet --profile interactive "$work/programs" "$work/interactive.weald"
    for label in 128K 1M; do mksquashfs "$work/programs" "$work/$label.squashfs" -comp zstd -b $label -no-progress -quiet >>"$out/log"; done
    truncate -s 2G "$work/plain.ext4"
    mkfs.ext4 -q -F -d "$work/programs" "$work/plain.ext4"
    for round in $(seq $START_ROUNDS); do
        say "   round $round"
        # Whoever comes first this time comes last the next.
        labels=("${labels[@]:1}" "${labels[0]}")
        for label in "${labels[@]}"; do start_round "$label"; done
    done
    table image MB 'cold, s' 'CPU s' 'of it the server' 'warm, s' 'CPU s'
    for label in $START_LABELS; do
        local cells=()
        for what in cold cpu server warm warm_cpu; do
            # shellcheck disable=SC2086 # numbers
            found[$label.$what]=$(median ${times[$label.$what]})
            cells+=("${found[$label.$what]}")
        done
        row "$label" "$(scaled "$(du -B1 "$work/$label" | cut -f1)" 0.000001 '%.1f')" "${cells[@]}"
    done
    printf '\n### The same, cold, from storage of %s MiB/s\n' $SLOW_MIB
    table image 'cold, s' 'CPU s' 'of it the server'
    slow_storage
    for label in $START_LABELS; do
        on_mount "${label##*.}" "$work/$label" cold start_all
        found[$label.slow]=$wall
        row "$label" "$wall" "$cpu" "$driver_part"
    done
    full_storage
    for label in default interactive; do
        verdict "start, $label: cold against SquashFS" "$(ratio "${found[$label.weald.cold]}" "$(least "${found[128K.squashfs.cold]}" "${found[1M.squashfs.cold]}")")" 1.00
        verdict "start, $label: from slow storage against SquashFS" "$(ratio "${found[$label.weald.slow]}" "$(least "${found[128K.squashfs.slow]}" "${found[1M.squashfs.slow]}")")" 1.00
        verdict "start, $label: CPU against SquashFS" "$(ratio "${found[$label.weald.cpu]}" "$(least "${found[128K.squashfs.cpu]}" "${found[1M.squashfs.cpu]}")")" 1.00
        verdict "start, $label: warm against ext4" "$(ratio "${found[$label.weald.warm]}" "${found[plain.ext4.warm]}")" 1.05
    done
    rm -r "$work/programs" "$work"/*.weald "$work"/*.squashfs "$work/plain.ext4"
}

many_part() {
    local round highest=0 first last
    step 'many images'
    printf '\n## %s images in one server, --cache %sM\n' $MANY $MANY_CACHE_MIB
    make_many $MANY
    serve_many --cache ${MANY_CACHE_MIB}M
    table round 'mounting, s' 'reading all, s' 'memory MiB' descriptors 'descriptors without mounts'
    for round in $(seq $MANY_ROUNDS); do
        local mounting reading full_mib full
        measure_machine mount_many $MANY
        mounting=$wall
        measure_machine read_many $MANY
        reading=$wall full_mib=$(server_mib) full=$(server_number descriptor_count)
        highest=$(printf '%s\n' "$highest" "$full_mib" | sort -g | tail -n1)
        umount_many $MANY
        last=$(server_number descriptor_count)
        if [ "$round" = 1 ]; then first=$last; fi
        row "$round" "$mounting" "$reading" "$full_mib" "$full" "$last"
    done
    unserve_many
    verdict "$MANY images: memory, MiB" "$highest" $((MANY_CACHE_MIB + 512))
    verdict "$MANY images: descriptors left, more than after the first round" $((last - first)) 0
    rm -r "$work/many"
}

# through_run HOW COUNT BYTES [map]: what bench/passthrough.py prints of a new mount, the medians of RUNS.
through_run() {
    local how=$1 count=$2 len=$3 server first=() again=() one two
    shift
    for _ in $(seq $RUNS); do
        "$work/passthrough" "$work/mnt" "$how" "$count" "$len" 3 2>>"$out/log" &
        server=$!
        until mountpoint -q "$work/mnt"; do
            kill -0 $server 2>/dev/null || die "no passthrough ($how): see $out/log; it needs Linux 6.9 with FUSE_PASSTHROUGH"
            sleep 0.01
        done
        # As a mount of Weald's sets it.
        echo 1024 >"/sys/class/bdi/$(stat -c '%Hd:%Ld' "$work/mnt")/read_ahead_kb"
        read -r one two < <(python3 "$root/bench/passthrough.py" "$work/mnt" "$@")
        first+=("$one") again+=("${two:--}")
        umount "$work/mnt"
        wait $server || true
    done
    cells+=("$(median "${first[@]}")")
    if [ "$two" ]; then cells+=("$(median "${again[@]}")"); fi
}

# What it would be worth to tie open files to decoded ones in memory (docs/design/0016); no target, for Weald does not.
through_part() {
    local how cells
    step 'passthrough'
    cc -O2 -pthread -o "$work/passthrough" "$root/bench/passthrough.c"
    printf '\n## Files that the kernel reads by itself (FUSE passthrough), all of it in memory before, seconds\n'
    table 'opens and reads' 'a GiB' again '20,000 files of 4 KiB' again '60 files of 20 MiB mapped'
    for how in plain opened through; do
        cells=()
        through_run $how 1 1073741824
        through_run $how 20000 4096
        through_run $how 60 20971520 map
        row $how "${cells[@]}"
    done
}

run() {
    local part
    machine Mounts
    for part in $parts; do "${part}_part"; done
    targets
}

for part in $parts; do
    case $part in
    meta | read | dir | start | many | through) ;;
    *) die "unknown part '$part'" ;;
    esac
done
need_root bench-mount
need_fuse
need cargo cc python3 openssl mksquashfs mkfs.erofs mkfs.ext4 mountpoint findmnt /usr/bin/time
build_programs
(cd "$root" && cargo build --profile "$profile" --locked --quiet -p weald-fuse --example stub)
stub=$bin/examples/stub
mkdir -p "$out"
: >"$out/log"
if [ -n "${WEALD_BENCH_ROOM:-}" ]; then export TMPDIR=$WEALD_BENCH_ROOM; fi
make_work
# Who dies in the slow part leaves no control group behind.
trap "clean_work; full_storage; give_free_pages" EXIT
keep_free_pages >"$work/free-pages"
free_pages=$(cat "$work/free-pages")
mkdir "$work/mnt"
driver=
run >"$out/results-mount.part"
mv "$out/results-mount.part" "$out/results-mount.md"
cat "$out/results-mount.md"
