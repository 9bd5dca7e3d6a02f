#!/bin/bash
# bench-forest.sh [soak]: forests of up to 10^7 files, with `soak` of 10^9, as Markdown: to standard output, results-forest.md and charts (SVG).
#   WEALD_BENCH_DIR     where results, charts and the log go (./bench-out)
#   WEALD_BENCH_PARTS   parts to run (build search mount listing counts host)
#   WEALD_BENCH_ROOM    directory for images and loop files (a temporary one)
# docs/benchmarks.md says what each workload means.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=measure.sh
. "$(dirname "$0")/measure.sh"

RUNS=3
# By turns, on file systems whose rates differ by a tenth from run to run.
HOST_RUNS=25
LOOK_UPS=3000
# Paths of the listing.
LISTED=10000000
FILE_SYSTEMS='ext4 xfs btrfs'

out=${WEALD_BENCH_DIR:-$root/bench-out}
parts=${WEALD_BENCH_PARTS:-build search mount listing counts host}
mode=${1:-bench}
case $mode in
bench) regular=100x100x1000 names=100x100x1000 walked=100x100x1000 served=100x10x1000 counts='10x1000 10x10x1000 100x10x1000 100x100x1000' ;;
soak) regular=1000x1000x1000 names=1000x100x1000 walked=1000x100x1000 served=100x100x1000 counts='10x1000 10x10x1000 100x10x1000 100x100x1000 1000x100x1000 1000x1000x1000' ;;
*) die "expected nothing or 'soak', found '$mode'" ;;
esac

# files FANOUT: how many files it has.
files() { tr x '\n' <<<"$1" | awk 'BEGIN { n = 1 } { n *= $1 } END { printf "%.0f", n }'; }

mib() { scaled "$1" 0.0009765625 '%.1f'; }

# per A B FORMAT: A divided by B.
per() { awk -v a="$1" -v b="$2" -v form="$3" 'BEGIN { printf form, a / (b > 0 ? b : 1) }'; }

len_of() { stat -c %s "$1"; }

# draw IMAGE FANOUT WORD...: an image of a forest, measured.
draw() {
    local image=$1 fanout=$2
    shift 2
    rm -f "$image"
    measure "$weald" forest --quiet --fanout "$fanout" "$@" --image "$image"
}

# build_row LABEL FANOUT WORD...: leaves $work/one.weald; sets $len and $each.
build_row() {
    local label=$1 fanout=$2 count
    shift 2
    say "   $label"
    draw "$work/one.weald" "$fanout" "$@"
    count=$(files "$fanout") len=$(len_of "$work/one.weald") each=$(per "$len" "$count" '%.3f')
    row "$label" "$fanout" "$cpu" "$wall" "$(per "$count" "$cpu" '%.0f')" "$(mib "$rss")" "$len" "$each"
}

# The span of `random:START:SECONDS`, whole nanoseconds: bits of a time.
SPAN=100000000
build_part() {
    local plain_len limit
    step building
    printf '\n## Forests straight into images\n'
    table shape fan-out 'CPU s' 'wall s' 'files a CPU s' 'memory MiB' 'image bytes' 'bytes a file'
    build_row 'equal times' "$regular"
    # Ten minutes for 10^9, and in proportion below.
    limit=$(per "$(files "$regular")" 1666667 '%.1f')
    verdict "$regular, equal times: wall s" "$wall" "$limit"
    verdict "$regular, equal times: memory, MiB" "$(mib "$rss")" 256
    verdict "$regular, equal times: image bytes" "$len" 65536
    mv "$work/one.weald" "$work/regular.weald"
    build_row 'times in steps of 1 s' "$regular" --times affine:1000000000:1000000000
    verdict "$regular, times in steps: wall s" "$wall" "$limit"
    verdict "$regular, times in steps: memory, MiB" "$(mib "$rss")" 256
    build_row 'random times' "$regular" --times random:1600000000:$SPAN
    plain_len=$(awk -v n="$(files "$regular")" -v s=$SPAN 'BEGIN { printf "%.0f", n * log(s * 1e9) / log(2) / 8 }')
    verdict "$regular, random times: wall s" "$wall" "$limit"
    verdict "$regular, random times: memory, MiB" "$(mib "$rss")" 256
    verdict "$regular, random times against their entropy" "$(per "$len" "$plain_len" '%.3f')" 1.15
    build_row 'names of 32 hexadecimal digits' "$names" --names hex
    verdict "$names, 32-digit names: bytes a name" "$each" 15.5
    rm "$work/one.weald"
}

# reader_row LABEL COMMAND...: what it takes to read an image.
reader_row() {
    local label=$1
    shift
    measure "$@"
    row "$label" "$cpu" "$wall" "$(mib "$rss")"
}

# found_row LABEL COUNT WORD...: searching so many entries of $image, with one thread and all of them: the same bytes. Sets $rate.
found_row() {
    local label=$1 count=$2 threads digest='' same=yes
    shift 2
    for threads in 1 0; do
        # shellcheck disable=SC2016 # for the inner shell
        measure bash -c 'out=$1; shift; "$@" >"$out"' find "$work/found" "$weald" find "$image" "$@" --threads $threads
        [ -z "$digest" ] || [ "$digest" = "$(b2sum <"$work/found")" ] || same=NO
        digest=$(b2sum <"$work/found")
        rate=$(per "$count" "$wall" '%.0f')
        row "$label" "${threads/#0/all}" "$cpu" "$wall" "$rate" "$(mib "$rss")" "$same"
    done
}

search_part() {
    local image count expected found
    step searching
    printf '\n## Without mounting\n'
    [ -e "$work/regular.weald" ] || draw "$work/regular.weald" "$regular"
    draw "$work/names.weald" "$walked" --names hex
    table search threads 'CPU s' 'wall s' 'entries a second' 'memory MiB' 'same bytes'
    image=$work/regular.weald count=$(files "$regular")
    found_row "--name '*42', counted" "$count" --name '*42' --count
    found_row "--type f --name '*42'" "$count" --type f --name '*42' --print0
    verdict_least "$regular: find --name, entries a second" "$rate" 20000000
    # What the generator says by itself, every path of it.
    expected=$("$weald" forest --quiet --fanout "$regular" --stream listing - | grep -z '42$' | b2sum)
    found=NO
    [ "$expected" != "$(b2sum <"$work/found")" ] || found=yes
    verdicts+=("$(row "$regular: paths found are those of the generator" "$found" yes "$found")")
    table search threads 'CPU s' 'wall s' 'entries a second' 'memory MiB' 'same bytes'
    found_row "--path '*/*/*42', walked" "$count" --path '*/*/*42' --count
    image=$work/names.weald count=$(files "$walked")
    found_row "no two directories alike: --name '*42'" "$count" --name '*42' --print0
    found_row 'no two directories alike: all paths' "$count" --print0
    rm "$work/found"
    table 'one command' 'CPU s' 'wall s' 'memory MiB'
    for image in regular names; do
        reader_row "$image: info" "$weald" info "$work/$image.weald"
        reader_row "$image: check" "$weald" check "$work/$image.weald"
        if [ "$image" = regular ]; then verdict "$regular: check, wall s" "$wall" 1; fi
        reader_row "$image: ls of the root" "$weald" ls "$work/$image.weald"
        cp "$work/$image.weald" "$work/same.weald"
        reader_row "$image: diff with an equal one" "$weald" diff "$work/$image.weald" "$work/same.weald"
        "$weald" find "$work/$image.weald" --type f --print0 2>/dev/null | head -z -n 4242 | tail -z -n 1 | tr -d '\0' >"$work/path" || true
        mkdir "$work/extracted"
        reader_row "$image: extract one file" "$weald" extract --quiet "$work/$image.weald" "$work/extracted" "$(cat "$work/path")"
        rm -r "$work/extracted" "$work/same.weald"
    done
    rm "$work/names.weald"
}

# server_rss: KiB that the server of $work/mnt holds.
server_rss() { awk '/VmHWM/ { print $2 }' "/proc/$server/status"; }

# serve IMAGE: mounts it with a server of known number, $server; its milliseconds in $ms.
serve() {
    local start=$EPOCHREALTIME
    "$weald" mount --foreground "$1" "$work/mnt" >>"$out/log" 2>&1 &
    server=$!
    until mountpoint -q "$work/mnt"; do
        kill -0 $server 2>/dev/null || die "the mount of $1 failed: see $out/log"
        sleep 0.002
    done
    ls "$work/mnt" >/dev/null
    ms=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.0f", (b - a) * 1000 }')
}

unserve() {
    umount "$work/mnt"
    wait "$server" || true
}

# draw_paths: paths of files of $work/mnt into $work/paths.
draw_paths() { python3 "$root/bench/draw-paths.py" "$work/mnt" $LOOK_UPS >"$work/paths"; }

# look_ups [--absent]: microseconds a path of $work/paths.
look_ups() { python3 "$root/bench/paths.py" "$work/mnt" "$@" <"$work/paths"; }

# serve_cold IMAGE: a new server, nothing cached by the kernel but the programs, the last of RUNS: $ms is the median of all; $work/paths are drawn
# of one before.
serve_cold() {
    local times=()
    serve "$1"
    draw_paths
    for _ in $(seq $RUNS); do
        unserve
        drop_caches
        "$weald" --version >/dev/null
        mountpoint -q "$work/mnt" || true
        ls "$work/mnt" >/dev/null
        serve "$1"
        times+=("$ms")
    done
    ms=$(median "${times[@]}")
}

# walk_mount: seconds of a walk over the mount, with sizes.
walk_mount() { find "$work/mnt" -mindepth 1 -size +1000000c -print >/dev/null; }

# numbers: a digest of the inode numbers of the directories at the top and of one leaf far from the first.
numbers() {
    local leaf
    leaf=$(find "$work/mnt" -mindepth 2 -maxdepth 2 -path '*7/*7' -print -quit)
    { find "$work/mnt" -maxdepth 1 -printf '%i %p\n' && find "$leaf" -printf '%i %p\n'; } | sort | b2sum
}

mount_part() {
    local all=$work/served.weald dirs size weald_times=() stub_times=() before after
    step mounting
    printf '\n## Mounted\n'
    [ -e "$work/regular.weald" ] || draw "$work/regular.weald" "$regular"
    serve_cold "$work/regular.weald"
    table image 'mount and first ls, ms' 'stat of a random path, us' 'of an absent name, us' 'server MiB'
    local there absent
    there=$(look_ups) absent=$(look_ups --absent)
    row "$regular" "$ms" "$there" "$absent" "$(mib "$(server_rss)")"
    verdict "$regular: mount and first ls, ms" "$ms" 50
    verdict "$regular: memory of the server, MiB" "$(mib "$(server_rss)")" 256
    before=$(numbers)
    unserve
    serve "$work/regular.weald"
    after=$(numbers)
    unserve
    size=no
    [ "$before" != "$after" ] || size=yes
    verdicts+=("$(row "$regular: inode numbers after mounting again are the same" "$size" yes "${size/no/NO}")")
    dirs=$(per "$(files "$served")" 1000 '%.0f')
    draw "$all" "$served"
    for _ in $(seq $RUNS); do
        serve "$all"
        drop_caches
        measure_machine walk_mount
        weald_times+=("$wall")
        unserve
        "$stub" "$work/mnt" "$dirs" 1000 >>"$out/log" 2>&1 &
        server=$!
        until mountpoint -q "$work/mnt"; do sleep 0.01; done
        drop_caches
        measure_machine walk_mount
        stub_times+=("$wall")
        unserve
    done
    serve "$all"
    size=$(find "$work/mnt" -printf '%i\n' | sort -n -u | wc -l)
    unserve
    local expected
    expected=$(("$("$weald" find "$all" --count)"))
    verdicts+=("$(row "$served: different inode numbers" "$size" "= $expected" "$([ "$size" = "$expected" ] && echo yes || echo NO)")")
    local own stubs
    own=$(printf '%s\n' "${weald_times[@]}" | sort -g | head -n1) stubs=$(printf '%s\n' "${stub_times[@]}" | sort -g | head -n1)
    table 'find -size over a mount, least of 3' entries 'wall s' 'us an entry'
    row Weald "$expected" "$own" "$(per "$(scaled "$own" 1000000 '%.0f')" "$expected" '%.2f')"
    row 'stub that computes its entries' "$expected" "$stubs" "$(per "$(scaled "$stubs" 1000000 '%.0f')" "$expected" '%.2f')"
    verdict_least "$served: find over the mount, rate against the stub" "$(ratio "$stubs" "$own")" 0.90
    rm "$all"
}

listing_part() {
    local count len copies words each least_cpu least_wall most_rss=0 entries tar_digest dir_digest same=no
    step listing
    printf '\n## Streams\n'
    copies=$(find /usr ! -type d | wc -l)
    copies=$(((LISTED + copies - 1) / copies))
    bash "$root/bench/make-listing.sh" $copies /usr >"$work/listing"
    count=$(tr -cd '\0' <"$work/listing" | wc -c)
    table 'stream, options' paths entries 'CPU s' 'wall s' 'entries a CPU s' 'memory MiB' 'image bytes' 'bytes an entry'
    # Once more each: the least counts.
    for words in '--level 0 --threads 1' '--level 0' '--level 7'; do
        least_cpu='' least_wall=''
        for _ in 1 2; do
            # shellcheck disable=SC2086 # words
            measure "$weald" build --quiet --force --memory 256M --from listing $words "$work/listing" "$work/listing.weald"
            if [ -z "$least_cpu" ] || awk -v a="$cpu" -v b="$least_cpu" 'BEGIN { exit !(a < b) }'; then least_cpu=$cpu least_wall=$wall; fi
            if [ "$rss" -gt "$most_rss" ]; then most_rss=$rss; fi
        done
        len=$(len_of "$work/listing.weald")
        entries=$("$weald" find "$work/listing.weald" --count)
        each=$(per "$entries" "$least_cpu" '%.0f')
        row "listing: /usr $copies times, shuffled; $words" "$count" "$entries" "$least_cpu" "$least_wall" "$each" "$(mib "$most_rss")" "$len" "$(per "$len" "$entries" '%.3f')"
        if [ "$words" = '--level 0 --threads 1' ]; then
            verdict_least "listing of $count paths: entries a CPU second" "$each" 1000000
        fi
    done
    verdict "listing of $count paths: memory, MiB" "$(mib "$most_rss")" 256
    rm "$work/listing" "$work/listing.weald"
    mkdir "$work/tree"
    "$weald" forest --quiet --fanout 20x20x100 --names words --sizes log-normal:1K:1 --symlinks 0.1 --hard-links 0.05 "$work/tree"
    "$weald" build --quiet "$work/tree" "$work/dir.weald"
    tar -C "$work/tree" --sort=name --format=pax -c . | "$weald" build --quiet - "$work/tar.weald"
    dir_digest=$("$weald" info "$work/dir.weald" --json | grep -o '"tree_digest":"[^"]*"')
    tar_digest=$("$weald" info "$work/tar.weald" --json | grep -o '"tree_digest":"[^"]*"')
    [ "$dir_digest" != "$tar_digest" ] || same=yes
    verdicts+=("$(row 'a tar stream of 40,000 files: tree digest as of the directory' "$same" yes "${same/no/NO}")")
    rm -r "$work/tree" "$work/dir.weald" "$work/tar.weald"
}

# with_file_system KIND COMMAND...: runs it while $work/host is a new one in a file; tmpfs in memory.
with_file_system() {
    local kind=$1
    shift
    mkdir -p "$work/host"
    case $kind in
    tmpfs) mount -t tmpfs -o size=4g,nr_inodes=0 weald-bench "$work/host" ;;
    *)
        truncate -s 16G "$work/host.file"
        case $kind in
        ext4) mkfs.ext4 -q -F -N 2500000 "$work/host.file" ;;
        *) "mkfs.$kind" -q "$work/host.file" >>"$out/log" 2>&1 ;;
        esac
        mount -o loop,noatime "$work/host.file" "$work/host"
        ;;
    esac
    "$@"
    umount "$work/host"
    rm -f "$work/host.file"
}

used() { df -B1 --output=used "$work/host" | tail -n1; }

# host_counts KIND FANOUT: rows of files made and removed by the loop.
host_counts() {
    local kind=$1 fanout=$2 count words made before bytes found du
    count=$(files "$fanout")
    read -ra words <<<"$(tr x ' ' <<<"$fanout")"
    if [ ${#words[@]} = 2 ]; then words=(1 "${words[@]}"); fi
    before=$(used)
    measure_machine "$work/loop" "$work/host" "${words[@]}" "$(nproc)"
    sync -f "$work/host"
    made=$(per "$count" "$wall" '%.0f') bytes=$(per $(($(used) - before)) "$count" '%.1f')
    # Its inodes are laid out when it is made, and count as used from then on.
    if [ "$kind" = ext4 ]; then bytes=$(sum "$bytes" 256); fi
    drop_caches
    measure_machine find "$work/host" -size +1000000c
    found=$wall
    drop_caches
    measure_machine du -s "$work/host" >/dev/null
    du=$wall
    drop_caches
    measure_machine rm -r "$work/host/0"
    row "$kind" "$count" "$made" "$bytes" "$found" "$du" "$wall"
    plot build "$kind" "$count" "$(per "$count" "$made" '%.3f')"
    plot bytes "$kind" "$count" "$(scaled "$count" "$bytes" '%.0f')"
}

# charts: of what has been measured so far.
charts() {
    chart build 'Making a forest' seconds
    chart bytes 'What a forest takes' bytes
    chart look-up 'A look-up of a random path, cold' us
    chart mount 'Mount and first ls' ms
    chart memory Memory MiB
}

# chart NAME TITLE UNIT
chart() { python3 "$root/bench/plot.py" "$2" files "$3" <"$out/forest-$1.txt" >"$out/forest-$1.svg"; }

# plot NAME SERIES COUNT VALUE
plot() { printf '%s %s %s\n' "$2" "$3" "$4" >>"$out/forest-$1.txt"; }

counts_part() {
    local fanout shape count words name
    step 'cost against count'
    printf '\n## Cost against count\n'
    for name in build bytes look-up mount memory; do : >"$out/forest-$name.txt"; done
    table 'file system, by the loop' files 'made a second' 'bytes a file' 'find, cold, s' 'du, cold, s' 'rm -r, cold, s'
    for shape in $FILE_SYSTEMS; do
        # `rm -r` takes what lies below 0.
        for fanout in 1x10x1000 1x100x1000 1x1000x1000; do
            say "   $shape $(files $fanout)"
            with_file_system "$shape" host_counts "$shape" "$fanout"
        done
    done
    table shape files 'build, wall s' 'CPU s' 'memory MiB' 'image bytes' 'bytes a file' 'mount ms' 'look-up us' 'server MiB'
    # 10^9 of those that hardly have two directories alike take most of an hour.
    for shape in regular names versions; do
        for fanout in $counts; do
            count=$(files "$fanout") words=()
            case $shape in
            versions) words=(--names words --versions 10 --name-changes 0.02) fanout=${fanout%x*}x100 ;;
            names) words=(--names hex) ;;
            esac
            say "   $shape $count"
            draw "$work/one.weald" "$fanout" "${words[@]}"
            count_row $shape "$count"
            rm "$work/one.weald"
        done
        charts
    done
}

# count_row SHAPE COUNT: of $work/one.weald, which has just been drawn.
count_row() {
    local shape=$1 count=$2 made=$wall spent=$cpu memory len there server_memory
    memory=$(mib "$rss") len=$(len_of "$work/one.weald")
    serve_cold "$work/one.weald"
    there=$(look_ups) server_memory=$(mib "$(server_rss)")
    unserve
    row "$shape" "$count" "$made" "$spent" "$memory" "$len" "$(per "$len" "$count" '%.4f')" "$ms" "$there" "$server_memory"
    plot build "$shape" "$count" "$made"
    plot bytes "$shape" "$count" "$len"
    plot look-up "$shape" "$count" "$there"
    plot mount "$shape" "$count" "$ms"
    plot memory "$shape-builder" "$count" "$memory"
    plot memory "$shape-server" "$count" "$server_memory"
    if [ "$count" -ge 1000000000 ]; then
        verdict "$count, $shape: mount and first ls, ms" "$ms" 50
        verdict "$count, $shape: memory of the server, MiB" "$server_memory" 256
    fi
}

# host_row KIND: the generator and the loop in turn, each HOST_RUNS times in a new file system; medians.
host_row() {
    local kind=$1 own=() loops=() own_rate loop_rate leaves=20 count
    # Memory is so fast that starting a program would be a hundredth of 200,000 files.
    if [ "$kind" = tmpfs ]; then leaves=100; fi
    count=$((10 * leaves * 1000))
    for _ in $(seq $HOST_RUNS); do
        with_file_system "$kind" timed_own
        own+=("$wall")
        with_file_system "$kind" timed_loop
        loops+=("$wall")
    done
    own_rate=$(per $count "$(median "${own[@]}")" '%.0f') loop_rate=$(per $count "$(median "${loops[@]}")" '%.0f')
    row "$kind" "$own_rate" "$loop_rate" "$(ratio "$own_rate" "$loop_rate")"
    verdict_least "$kind: files a second against the loop" "$(ratio "$own_rate" "$loop_rate")" 1.00
}

# The loop sets no times. Both begin at the root of the file system: what lies right below it, ext4 keeps apart.
timed_own() { measure_machine "$weald" forest --quiet --times now --fanout "10x${leaves}x1000" "$work/host"; }

timed_loop() { measure_machine "$work/loop" "$work/host" 10 "$leaves" 1000 "$(nproc)"; }

host_part() {
    local kind
    step 'files on a host'
    printf '\n## 200,000 empty files in a file system, 10^6 in memory\n'
    table 'file system' 'weald forest, files a second' 'the loop' 'ratio'
    for kind in $FILE_SYSTEMS tmpfs; do
        say "   $kind"
        host_row "$kind"
    done
}

run() {
    local part
    printf '# Forests, %s\n\n' "$mode"
    printf -- '- Weald %s, %s\n' "$("$weald" --version | cut -d' ' -f2)" "$(git -C "$root" describe --always --dirty 2>/dev/null || echo 'no git')"
    printf -- '- %s × %s, Linux %s; load when it began: %s\n' "$(nproc)" "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n1)" "$(uname -r)" \
        "$(cut -d' ' -f1-3 /proc/loadavg)"
    for part in $parts; do "${part}_part"; done
    targets
}

for part in $parts; do
    case $part in
    build | search | mount | listing | counts | host) ;;
    *) die "unknown part '$part'" ;;
    esac
done
need_root bench-forest
need_fuse
need cargo cc python3 mkfs.ext4 mkfs.xfs mkfs.btrfs mountpoint /usr/bin/time
build_programs
(cd "$root" && cargo build --profile "$profile" --locked --quiet -p weald-fuse --example stub)
stub=$bin/examples/stub
mkdir -p "$out"
: >"$out/log"
if [ -n "${WEALD_BENCH_ROOM:-}" ]; then export TMPDIR=$WEALD_BENCH_ROOM; fi
make_work
mkdir "$work/mnt"
cc -O2 -pthread -o "$work/loop" "$root/bench/loop.c"
run >"$out/results-forest.part"
mv "$out/results-forest.part" "$out/results-forest.md"
cat "$out/results-forest.md"
