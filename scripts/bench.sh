#!/bin/bash
# bench.sh: figures of Weald beside SquashFS and EROFS, in one run, as Markdown: to standard output and to results.md.
#   WEALD_BENCH_DIR     where results, the log and the forest go (./bench-out)
#   WEALD_FOREST        a forest that is there already, made by bench/make-forest.sh
#   WEALD_BENCH_TREES   other trees: "NAME=DIR NAME=DIR"
#   WEALD_BENCH_LEVELS  levels of weald build (1 3 5 7 8 9; those above 7 on the forest only)
#   WEALD_BENCH_FILES   files of the tree for the builder's memory (1000000)
# docs/benchmarks.md says what each workload means.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=measure.sh
. "$(dirname "$0")/measure.sh"

LEVEL_DEFAULT=7
MOUNT_RUNS=5
READ_RUNS=3
# Trees longer than this are read once: what disturbs a run of minutes evens out.
READ_ONCE_LEN=2000000000

out=${WEALD_BENCH_DIR:-$root/bench-out}
levels=${WEALD_BENCH_LEVELS:-1 3 5 7 8 9}
file_count=${WEALD_BENCH_FILES:-1000000}

levels_for() {
    local level
    for level in $levels; do
        if [ "$level" -le $LEVEL_DEFAULT ] || [ "$1" = forest ]; then printf '%s\n' "$level"; fi
    done
}

# build_row LABEL IMAGE COMMAND...: builds, and prints one line of the table of sizes.
build_row() {
    local label=$1 image=$2
    shift 2
    say "   $label"
    measure "$@"
    len=$(stat -c %s "$image")
    row "$label" "$(scaled "$len" 0.000001 '%.1f')" "$(ratio "$len" "${squash_len:-$len}")" "$cpu" \
        "$(ratio "$cpu" "${squash_cpu:-$cpu}")" "$wall" "$(scaled "$rss" 0.0009765625 '%.0f')"
}

# sizes NAME DIR: the images stay as $work/NAME.{weald,squashfs,erofs}.
sizes() {
    local name=$1 tree=$2 level image options squash_len='' squash_cpu='' len
    step "$name: building"
    printf '\n## %s: size and cost of building\n\n%s, %s in files.\n' "$name" "$tree" "$(human "$(tree_len "$tree")")"
    tar -C "$tree" -c . | cat >/dev/null
    table builder MB '× SquashFS' 'CPU s' '× SquashFS' 'wall s' 'memory MiB'
    build_row 'SquashFS zstd-22, 1 MiB' "$work/$name.squashfs" \
        mksquashfs "$tree" "$work/$name.squashfs" -comp zstd -b 1M -Xcompression-level 22 -no-progress -quiet
    squash_len=$len
    squash_cpu=$cpu
    read -ra options <<<"$(erofs_options)"
    build_row "EROFS ${options[*]}" "$work/$name.erofs" mkfs.erofs "${options[@]}" --quiet "$work/$name.erofs" "$tree"
    for level in $(levels_for "$name"); do
        image=$work/$name-$level.weald
        build_row "Weald level $level" "$image" "$weald" build --level "$level" --progress none "$tree" "$image"
        if [ "$level" = $LEVEL_DEFAULT ]; then
            mv "$image" "$work/$name.weald"
            if [ "$name" = forest ]; then
                verdict "forest: size against SquashFS" "$(ratio "$len" "$squash_len")" 0.75
                verdict "forest: CPU against SquashFS" "$(ratio "$cpu" "$squash_cpu")" 0.60
            fi
        else
            rm "$image"
        fi
    done
}

# metadata NAME: bytes of the tree (names, attributes, lengths, index), and of the extents that say what contents are made of.
metadata() {
    local name_count tree extents each
    "$weald" info --json "$work/$1.weald" >"$work/info"
    name_count=$(json_number "$work/info" name_count)
    tree=$(json_number "$work/info" tree_len)
    extents=$(json_number "$work/info" extents_len)
    each=$(ratio "$tree" "$name_count")
    printf '\nTree: %s bytes for %s names, %s bytes a name.\n' "$tree" "$name_count" "$each"
    printf 'Extents (repeats found in contents): %s bytes, %s bytes a name.\n' "$extents" \
        "$(ratio "$extents" "$name_count")"
    case $1 in
    forest) verdict "forest: tree metadata, bytes a name" "$each" 1.5 ;;
    usr) verdict "usr: tree metadata, bytes a name" "$each" 7 ;;
    esac
}

# each_kind NAME FUNCTION: calls it with KIND and IMAGE for every image of a tree.
each_kind() {
    local kind
    for kind in squashfs erofs weald; do "$2" "$kind" "$work/$1.$kind"; done
}

mount_and_list() {
    mount_image "$1" "$2" "$work/mnt" && ls -l "$work/mnt" >/dev/null
}

mount_row() {
    local times=() milliseconds
    for _ in $(seq $MOUNT_RUNS); do
        drop_caches
        measure_machine mount_and_list "$1" "$2"
        times+=("$wall")
        unmount_image "$1" "$work/mnt"
    done
    milliseconds=$(scaled "$(median "${times[@]}")" 1000 '%.1f')
    row "$1" "$milliseconds"
    if [ "$1" = weald ]; then verdict "$name: mount and first ls, ms" "$milliseconds" 50; fi
}

read_tree() { tar -C "$work/mnt" -c . | cat >/dev/null; }

find_sizes() { find "$work/mnt" -printf '%s\n' >/dev/null; }

# read_row KIND IMAGE: cold is a new mount and empty caches, warm is the same once more.
read_row() {
    local runs=$read_runs cold=() cold_cpu=() warm=() warm_cpu=() find=() find_cpu=() seconds
    for _ in $(seq "$runs"); do
        mount_image "$1" "$2" "$work/mnt"
        drop_caches
        measure_machine read_tree
        cold+=("$wall") cold_cpu+=("$cpu")
        measure_machine read_tree
        warm+=("$wall") warm_cpu+=("$cpu")
        unmount_image "$1" "$work/mnt"
        mount_image "$1" "$2" "$work/mnt"
        drop_caches
        measure_machine find_sizes
        find+=("$wall") find_cpu+=("$cpu")
        unmount_image "$1" "$work/mnt"
    done
    seconds=$(median "${cold[@]}")
    row "$1" "$seconds" "$(median "${cold_cpu[@]}")" "$(median "${warm[@]}")" "$(median "${warm_cpu[@]}")" \
        "$(median "${find[@]}")" "$(median "${find_cpu[@]}")"
    case $1 in
    squashfs) squash_seconds=$seconds ;;
    weald) verdict "$name: reading all, cold, against SquashFS" "$(ratio "$seconds" "$squash_seconds")" 1.00 ;;
    esac
}

# mounts NAME DIR
mounts() {
    local name=$1 squash_seconds='' read_runs=$READ_RUNS
    if [ "$(tree_len "$2")" -gt $READ_ONCE_LEN ]; then read_runs=1; fi
    step "$name: mounting and reading"
    printf '\n## %s: mount and first ls\n' "$name"
    table 'file system' ms
    each_kind "$name" mount_row
    printf '\n## %s: reading through the mount, seconds\n' "$name"
    table 'file system' 'tar, cold' CPU 'tar, warm' CPU 'find -printf %s, cold' CPU
    read_row dir "$2"
    each_kind "$name" read_row
}

# A thousand directories; two files of three are empty, the others hold up to 200 bytes that no other holds.
make_many_files() {
    perl -e '
        my ($dir, $count) = @ARGV;
        for my $i (0 .. $count - 1) {
            my $parent = sprintf("%s/%04d", $dir, $i % 1000);
            mkdir $parent if $i < 1000;
            open(my $file, ">", sprintf("%s/file-%07d", $parent, $i)) or die "$parent: $!";
            print $file (sprintf("file %d\n", $i) x (1 + $i % 12)) if $i % 3 == 0;
            close($file) or die "$parent: $!";
        }' "$1" "$2"
}

# memory_row LABEL LIMIT_MIB COMMAND...
memory_row() {
    local label=$1 limit=$2
    shift 2
    say "   $label"
    measure "$@"
    rss=$(scaled "$rss" 0.0009765625 '%.0f')
    row "$label" "$rss" "$limit" "$cpu" "$wall"
    if [ "$limit" != - ]; then verdict "$file_count files, --memory ${limit}M: memory, MiB" "$rss" "$limit"; fi
}

memory() {
    local limit
    step "memory of the builder on $file_count files"
    printf '\n## Memory of the builder on %s small files\n' "$file_count"
    mkdir "$work/many"
    make_many_files "$work/many" "$file_count"
    table builder 'memory MiB' 'limit MiB' 'CPU s' 'wall s'
    memory_row 'SquashFS zstd-22, 1 MiB' - mksquashfs "$work/many" "$work/many.squashfs" -comp zstd -b 1M -Xcompression-level 22 -no-progress -quiet
    for limit in 416 512; do
        memory_row "Weald --memory ${limit}M" $limit \
            "$weald" build --memory ${limit}M --progress none --force "$work/many" "$work/many.weald"
    done
    rm -rf "$work/many"*
}

# trees: lines NAME=DIR.
trees() {
    if [ -n "${WEALD_BENCH_TREES:-}" ]; then
        tr ' ' '\n' <<<"$WEALD_BENCH_TREES"
        return
    fi
    printf 'forest=%s\nusr=/usr\n' "${WEALD_FOREST:-$out/forest}"
}

make_forest() {
    if [ -n "${WEALD_FOREST:-}${WEALD_BENCH_TREES:-}" ]; then return; fi
    step "the small forest, from the registries (kept in $out/forest)"
    bash "$root/bench/make-forest.sh" "$root/bench/forest-small.list" "$out/forest"
}

# one_tree NAME DIR
one_tree() {
    sizes "$1" "$2"
    metadata "$1"
    mounts "$1" "$2"
    rm -f "$work/$1".*
}

run() {
    each_tree one_tree
    memory
    targets
}

need cargo mksquashfs mkfs.erofs /usr/bin/time perl losetup
need_root "mounting and dropping caches"
need_fuse
build_programs
mkdir -p "$out"
: >"$out/log"
make_work
mkdir "$work/mnt"
make_forest
run >"$out/results.part"
mv "$out/results.part" "$out/results.md"
cat "$out/results.md"
