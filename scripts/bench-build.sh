#!/bin/bash
# bench-build.sh: size, CPU time and memory of building beside every rival that Debian has, in one run, as Markdown: to standard
# output and to results-build.md.
#   WEALD_BENCH_DIR      where results, the log and the trees go (./bench-out)
#   WEALD_FOREST         a forest that is there already, made by bench/make-forest.sh
#   WEALD_BENCH_TREES    other trees: "NAME=DIR NAME=DIR" (forest, judge and toolchain)
#   WEALD_BENCH_RIVALS   rivals to run: words out of the table below (all)
#   WEALD_BENCH_PARTS    parts to run (sizes reading extraction speed torture append)
# docs/benchmarks.md says what each workload means.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=measure.sh
. "$(dirname "$0")/measure.sh"

LEVEL_DEFAULT=7
LEVELS='5 7 9'

out=${WEALD_BENCH_DIR:-$root/bench-out}
rivals=${WEALD_BENCH_RIVALS:-squashfs-zstd squashfs-xz erofs tar-zstd-19 tar-zstd-22 tar-xz zpaq lrzip borg restic}
parts=${WEALD_BENCH_PARTS:-sizes reading extraction speed torture append}

# rival NAME TREE TARGET: packs the tree with the strongest options that are still used. A directory as target counts whole.
rival() {
    local tree=$2 target=$3 filter
    case $1 in
    squashfs-zstd) mksquashfs "$tree" "$target" -comp zstd -b 1M -Xcompression-level 22 -no-progress -quiet ;;
    squashfs-xz)
        filter=()
        if [ "$(uname -m)" = x86_64 ]; then filter=(-Xbcj x86); fi
        mksquashfs "$tree" "$target" -comp xz -b 1M -Xdict-size 100% "${filter[@]}" -no-progress -quiet
        ;;
    erofs)
        local options
        read -ra options <<<"$(erofs_options)"
        mkfs.erofs "${options[@]}" --quiet "$target" "$tree"
        ;;
    tar-zstd-19) tar -C "$tree" --sort=name -c . | zstd -q -19 -T0 --long=31 -o "$target" ;;
    tar-zstd-22) tar -C "$tree" --sort=name -c . | zstd -q --ultra -22 -T0 --long=31 -o "$target" ;;
    tar-xz) tar -C "$tree" --sort=name -c . | xz -9e >"$target" ;;
    zpaq) zpaq add "$target.zpaq" "$tree" -m3 && mv "$target.zpaq" "$target" ;;
    lrzip) tar -C "$tree" --sort=name -c . >"$work/tar" && lrzip -q -L 9 -U -o "$target" "$work/tar" && rm "$work/tar" ;;
    borg)
        export BORG_BASE_DIR=$work/borg-base BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
        borg init --encryption none "$target" && borg create --compression zstd,19 "$target::tree" "$tree"
        ;;
    restic)
        export RESTIC_PASSWORD=weald RESTIC_CACHE_DIR=$work/restic-cache
        restic -q init -r "$target" --repository-version 2 && restic -q backup -r "$target" --compression max "$tree"
        ;;
    *) die "unknown rival '$1'" ;;
    esac
}
export -f rival erofs_options die
export work

# file_len PATH: bytes of a file, or of all files of a directory.
file_len() { find "$1" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }'; }

# size_row LABEL TARGET COMMAND...: sets $len.
size_row() {
    local label=$1 target=$2
    shift 2
    say "   $label"
    measure "$@"
    len=$(file_len "$target")
    row "$label" "$(scaled "$len" 0.000001 '%.1f')" "$(ratio "$len" "${default_len:-$len}")" "$cpu" \
        "$(ratio "$cpu" "${default_cpu:-$cpu}")" "$wall" "$(scaled "$rss" 0.0009765625 '%.0f')"
}

# Targets of the issue for the tuning forest, by level: MB, CPU seconds and MiB of memory at most.
forest_verdicts() {
    local megabytes
    megabytes=$(scaled "$len" 0.000001 '%.1f')
    case $1 in
    5) set -- 5 41 15 - ;;
    7) set -- 7 36 60 384 ;;
    9) set -- 9 31 200 - ;;
    esac
    verdict "forest, level $1: MB" "$megabytes" "$2"
    verdict "forest, level $1: CPU s" "$cpu" "$3"
    if [ "$4" != - ]; then verdict "forest, level $1: memory, MiB" "$(scaled "$rss" 0.0009765625 '%.0f')" "$4"; fi
}

# Targets for ordinary trees, after a rival has run: the default against SquashFS zstd, the strongest against xz.
rival_verdicts() {
    local name=$1
    if [ "$name" = forest ]; then return; fi
    case $2 in
    squashfs-zstd)
        verdict "$name: default against SquashFS zstd-22, size" "$(ratio "$default_len" "$len")" 0.85
        verdict "$name: default against SquashFS zstd-22, CPU" "$(ratio "$default_cpu" "$cpu")" 0.50
        ;;
    squashfs-xz)
        verdict "$name: strongest against SquashFS xz, size" "$(ratio "$strongest_len" "$len")" 0.85
        verdict "$name: strongest against SquashFS xz, CPU" "$(ratio "$strongest_cpu" "$cpu")" 1.00
        ;;
    tar-xz)
        verdict "$name: strongest against tar and xz -9e, size" "$(ratio "$strongest_len" "$len")" 1.00
        verdict "$name: strongest against tar and xz -9e, CPU" "$(ratio "$strongest_cpu" "$cpu")" 1.00
        ;;
    tar-zstd-22)
        verdict "$name: default against tar and zstd --ultra -22 --long=31, size" "$(ratio "$default_len" "$len")" 0.90
        verdict "$name: default against tar and zstd --ultra -22 --long=31, CPU" "$(ratio "$default_cpu" "$cpu")" 0.25
        ;;
    esac
}

# sizes NAME DIR
sizes() {
    local name=$1 tree=$2 level rival image len default_len='' default_cpu='' strongest_len='' strongest_cpu=''
    step "$name: building"
    printf '\n## %s: %s, %s in files\n' "$name" "$tree" "$(human "$(tree_len "$tree")")"
    tar -C "$tree" -c . | cat >/dev/null
    # The default first: everything else is a multiple of it.
    table builder MB '× default' 'CPU s' '× default' 'wall s' 'memory MiB'
    for level in $LEVEL_DEFAULT $LEVELS; do
        image=$work/$name-$level.weald
        if [ -e "$image" ]; then continue; fi
        size_row "Weald level $level" "$image" "$weald" build --level "$level" --progress none "$tree" "$image"
        case $level in
        "$LEVEL_DEFAULT") default_len=$len default_cpu=$cpu ;;
        9) strongest_len=$len strongest_cpu=$cpu ;;
        esac
        if [ "$name" = forest ]; then forest_verdicts "$level"; fi
    done
    for rival in $rivals; do
        size_row "$rival" "$work/rival" bash -euo pipefail -c 'rival "$@"' rival "$rival" "$tree" "$work/rival"
        rival_verdicts "$name" "$rival"
        rm -rf "$work/rival"
    done
}

# decoded IMAGE WHAT: bytes that have to be decoded, on average: small_read, file or directory.
decoded() {
    "$weald" info --reading --json "$1" | grep -o "\"$2\":{[^}]*" | grep -o '"mean":[0-9]*' | cut -d: -f2
}

# reading_row LABEL IMAGE DEFAULT_LEN
reading_row() {
    local len
    len=$(stat -c %s "$2")
    row "$1" "$(scaled "$len" 0.000001 '%.1f')" "$(ratio "$len" "$3")" "$(scaled "$(decoded "$2" small_read)" 0.0009765625 '%.0f')" \
        "$(scaled "$(decoded "$2" file)" 0.0009765625 '%.0f')" "$(scaled "$(decoded "$2" directory)" 0.0009765625 '%.0f')"
}

# reading NAME DIR: what reads decode, in every order and in the interactive profile.
reading() {
    local name=$1 image=$work/$1-$LEVEL_DEFAULT.weald default_len order
    step "$name: reading"
    [ -e "$image" ] || "$weald" build --quiet "$2" "$image"
    "$weald" build --quiet --profile interactive "$2" "$work/interactive.weald"
    default_len=$(stat -c %s "$image")
    table 'Weald' MB '× default' 'KiB decoded: 4 KiB anywhere' 'a file' 'the files of a directory'
    reading_row 'default' "$image" "$default_len"
    for order in name revpath similarity nilsimsa; do
        "$weald" build --quiet --order $order --force "$2" "$work/order.weald"
        reading_row "--order $order" "$work/order.weald" "$default_len"
    done
    reading_row '--profile interactive' "$work/interactive.weald" "$default_len"
    verdict "$name: decoded for 4 KiB, default, KiB" "$(scaled "$(decoded "$image" small_read)" 0.0009765625 '%.0f')" 4096
    verdict "$name: decoded for 4 KiB, interactive, KiB" \
        "$(scaled "$(decoded "$work/interactive.weald" small_read)" 0.0009765625 '%.0f')" 256
    verdict "$name: size of interactive against the default" \
        "$(awk -v a="$(stat -c %s "$work/interactive.weald")" -v b="$default_len" 'BEGIN { printf "%.3f", a / b }')" 1.12
    rm "$work/order.weald" "$work/interactive.weald"
}

# content_len DIR: bytes of the contents of its files, those of several names once.
content_len() { find "$1" -type f -printf '%D:%i %s\n' | sort -u | awk '{ sum += $2 } END { printf "%.0f", sum }'; }

# memory_place LEN: a new directory in memory, where there is room for that much twice; else one in $work.
memory_place() {
    local free
    free=$(df --output=avail --block-size=1 /dev/shm 2>/dev/null | tail -n1)
    if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ "${free:-0}" -gt $(($1 * 2)) ]; then
        mktemp -d /dev/shm/weald-XXXXXXXX
    else
        mktemp -d "$work/place-XXXXXXXX"
    fi
}

# extraction NAME DIR: of the whole tree, into memory, where a file system costs least; tar has nothing to decode. Medians of five by turns. Then once on disk.
extraction() {
    local name=$1 image=$work/$1-$LEVEL_DEFAULT.weald len onto round rates=() cpus=() walls=() tar_rates=() tar_cpus=() tar_walls=()
    step "$name: extraction"
    [ -e "$image" ] || "$weald" build --quiet "$2" "$image"
    len=$(content_len "$2")
    tar -C "$2" -cf "$work/plain.tar" .
    cat "$image" >/dev/null
    place=$(memory_place "$len")
    onto=$(stat -f -c %T "$place")
    for round in 1 2 3 4 5; do
        say "   $round"
        mkdir "$place/tree"
        measure "$weald" extract --quiet "$image" "$place/tree"
        rates+=("$(rate_of "$len")") cpus+=("$cpu") walls+=("$wall")
        rm -rf "$place/tree"
        mkdir "$place/tree"
        measure tar -C "$place/tree" -xf "$work/plain.tar"
        tar_rates+=("$(rate_of "$len")") tar_cpus+=("$cpu") tar_walls+=("$wall")
        rm -rf "$place/tree"
    done
    table "extraction, $(human "$len")" 'onto' 'MB a CPU s' 'CPU s' 'wall s'
    row 'weald extract' "$onto" "$(median "${rates[@]}")" "$(median "${cpus[@]}")" "$(median "${walls[@]}")"
    row 'tar -x, nothing compressed' "$onto" "$(median "${tar_rates[@]}")" "$(median "${tar_cpus[@]}")" "$(median "${tar_walls[@]}")"
    rm -rf "$place"
    place=
    # shellcheck disable=SC2016 # for the inner shell
    measure bash -c '"$0" tar "$1" >/dev/null' "$weald" "$image"
    row 'weald tar' 'nowhere' "$(rate_of "$len")" "$cpu" "$wall"
    # Nothing is deleted before the end: ext4 passes over each inode that was freed in the last minutes, which makes new files many times dearer.
    mkdir "$work/extracted-$name" "$work/untarred-$name"
    measure "$weald" extract --quiet "$image" "$work/extracted-$name"
    row 'weald extract' "$(stat -f -c %T "$work")" "$(rate_of "$len")" "$cpu" "$wall"
    measure tar -C "$work/untarred-$name" -xf "$work/plain.tar"
    row 'tar -x, nothing compressed' "$(stat -f -c %T "$work")" "$(rate_of "$len")" "$cpu" "$wall"
    rm "$work/plain.tar"
    verdict_least "$name: extraction onto $onto, MB a CPU second" "$(median "${rates[@]}")" 400
}

# rate_of LEN: megabytes in one of $cpu's seconds.
rate_of() { awk -v len="$1" -v cpu="$cpu" 'BEGIN { printf "%.0f", len / 1e6 / (cpu > 0.01 ? cpu : 0.01) }'; }

# speed_row LABEL LEAST COMMAND...: megabytes of $speed_len in a CPU second.
speed_row() {
    local label=$1 least=$2 rate
    shift 2
    say "   $label"
    measure "$@"
    rate=$(rate_of "$speed_len")
    row "$label" "$rate" "$cpu" "$wall"
    verdict_least "$label, MB a CPU second" "$rate" "$least"
}

speed() {
    local tree=$1 speed_len one
    step "speed"
    printf '\n## Speed\n'
    mkdir "$work/unique"
    openssl enc -aes-128-ctr -nosalt -K 00 -iv 00 -in /dev/zero 2>/dev/null | head -c 1G >"$work/unique/file" || true
    speed_len=$(stat -c %s "$work/unique/file")
    table 'what is built' 'MB a CPU s' 'CPU s' 'wall s'
    speed_row 'unique data, repeats looked for' 150 \
        "$weald" build --codec none --categorize none --progress none --force "$work/unique" "$work/speed.weald"
    # What a base has is read, hashed and found, and nothing else: no repeats are looked for and nothing is written.
    "$weald" build --quiet --level 0 --force "$work/unique" "$work/speed.weald"
    mkdir "$work/copies"
    for n in 1 2 3 4; do cp "$work/unique/file" "$work/copies/$n"; done
    speed_len=$((speed_len * 4))
    speed_row 'copies of what a base has: read, hashed, found' 1000 \
        "$weald" build --level 0 --progress none --base "$work/speed.weald" "$work/copies" "$work/copies.weald"
    rm -rf "$work/unique" "$work/copies" "$work/speed.weald" "$work/copies.weald"
    # A build with one compressor still reads and segments beside it: only one core is what two are measured against.
    measure taskset -c 0 "$weald" build --threads 1 --progress none --force "$tree" "$work/speed.weald"
    one=$wall
    measure "$weald" build --threads 2 --progress none --force "$tree" "$work/speed.weald"
    rm "$work/speed.weald"
    printf '\nThe forest, level %s: %s s on one core, %s s on two.\n' "$LEVEL_DEFAULT" "$one" "$wall"
    if [ "$(nproc)" -ge 2 ]; then verdict_least 'two cores against one' "$(ratio "$one" "$wall")" 1.8; fi
}

# make_torture DIR: sparse, constant and periodic files, and one whose samples are all found in the match table and lead nowhere: the same
# 200 bytes again and again, which is too short for a repeat, with 24 random ones between.
make_torture() {
    local period
    mkdir "$1"
    truncate -s 16G "$1/sparse"
    printf x | dd of="$1/sparse" bs=1 seek=9000000000 conv=notrunc status=none
    head -c 4G /dev/zero | tr '\0' a >"$1/constant"
    for period in 255 256 257 65537; do
        perl -e 'my ($period, $len) = @ARGV; srand($period); my $piece = join "", map { chr int rand 256 } 1 .. $period;
            my $run = $piece x int(1 + (1 << 20) / $period); my $left = $len;
            while ($left > 0) { print substr($run, 0, $left); $left -= length $run }' "$period" 536870912 >"$1/period-$period"
    done
    openssl enc -aes-128-ctr -nosalt -K 01 -iv 00 -in /dev/zero 2>/dev/null | head -c 64M |
        perl -e 'my $same = join "", map { chr(($_ * 167 + 13) % 251) } 1 .. 200; $/ = \24; binmode STDIN;
            while (my $between = <STDIN>) { print $same, $between }' >"$1/colliding" || true
}

torture() {
    local file len limit=512 rate codec
    step "torture"
    printf '\n## Torture: sparse, constant and periodic files, colliding samples, --memory %sM\n' "$limit"
    make_torture "$work/torture"
    table file 'MB a second' 'wall s' 'memory MiB' 'image bytes'
    for file in sparse constant period-255 period-256 period-257 period-65537 colliding; do
        say "   $file"
        mkdir "$work/one"
        mv "$work/torture/$file" "$work/one/"
        len=$(stat -c %s "$work/one/$file")
        # What collides is no repeat: with a codec, the codec alone would be measured.
        codec=()
        if [ "$file" = colliding ]; then codec=(--codec none); fi
        measure "$weald" build --memory ${limit}M "${codec[@]}" --progress none "$work/one" "$work/one.weald"
        rate=$(awk -v len="$len" -v wall="$wall" 'BEGIN { printf "%.0f", len / 1e6 / (wall > 0.01 ? wall : 0.01) }')
        rss=$(scaled "$rss" 0.0009765625 '%.0f')
        row "$file" "$rate" "$wall" "$rss" "$(stat -c %s "$work/one.weald")"
        verdict_least "$file: MB a second" "$rate" 100
        verdict "$file: memory, MiB" "$rss" $limit
        rm -rf "$work/one" "$work/one.weald"
    done
    rm -rf "$work/torture"
}

# The last versions of packages of several kinds: what a forest grows by.
NEWEST='pypi/django/5.2.9 pypyc/setuptools/84.2.1 npm/webpack/5.99.9 npm/prettier/3.8.3 npm/typescript/5.9.3 crate/libc/0.2.174'

# What level 7 has without its choice by samples. What a new build grows by is told from such builds: the default packs some block the other way
# when a version shifts it, and the tens of kilobytes of that hide what the version takes.
STEADY='--codec zstd:16 --codec x86=zstd-code'

# build_row LEN MORE CELL...: a line of the table of newest versions: LEN bytes where a new build grows by MORE, $cpu and $wall.
build_row() {
    local len=$1 more=$2
    shift 2
    row "$@" "$len" "$(ratio "$len" "$more")" "$cpu" "$(ratio "$cpu" "$anew_cpu")" "$wall" "$(ratio "$wall" "$anew_wall")"
}

# append DIR: for each of $NEWEST the forest without that version, then with it: as a generation, over a base, and built anew.
append() {
    local tree=$1 version without whole more len anew_cpu anew_wall
    local sum_more=0 sum_append=0 sum_base=0 cpu_append=0 cpu_base=0 wall_append=0 wall_base=0 count=0 steady
    read -ra steady <<<"$STEADY"
    step "append and base"
    printf '\n## One version more\n'
    measure "$weald" build --progress none "$tree" "$work/whole.weald"
    anew_cpu=$cpu anew_wall=$wall
    printf '\nThe whole forest, built anew: %s bytes, %s CPU s, %s wall s' "$(stat -c %s "$work/whole.weald")" "$cpu" "$wall"
    "$weald" build --quiet --force "${steady[@]}" "$tree" "$work/whole.weald"
    whole=$(stat -c %s "$work/whole.weald")
    rm "$work/whole.weald"
    printf '; with %s, which new builds of this table have, %s bytes.\n' "$STEADY" "$whole"
    table 'version' 'how' 'bytes more' '× built anew' 'CPU s' '× built anew' 'wall s' '× built anew'
    for version in $NEWEST; do
        [ -d "$tree/$version" ] || die "$tree/$version is not there"
        say "   $version"
        # The forest is there for others too: nothing in it is moved.
        "$weald" build --quiet "${steady[@]}" --exclude "/$version" "$tree" "$work/base.weald"
        without=$(stat -c %s "$work/base.weald")
        more=$((whole - without)) count=$((count + 1)) sum_more=$((sum_more + more))
        row "$version" 'built anew' "$more" - - - - -
        cp "$work/base.weald" "$work/append.weald"
        # An image that is there is on the disk: syncing what is added must not write the copy.
        sync "$work/append.weald"
        measure "$weald" build --append --progress none "$tree" "$work/append.weald"
        len=$(($(stat -c %s "$work/append.weald") - without))
        sum_append=$((sum_append + len)) cpu_append=$(sum "$cpu_append" "$cpu") wall_append=$(sum "$wall_append" "$wall")
        build_row "$len" "$more" "$version" '--append'
        # What a base is for: a tree of its own that lies on what is there. The whole tree besides, for its directories.
        measure "$weald" build --base "$work/base.weald" --progress none "$tree/$version" "$work/over.weald"
        len=$(stat -c %s "$work/over.weald")
        sum_base=$((sum_base + len)) cpu_base=$(sum "$cpu_base" "$cpu") wall_base=$(sum "$wall_base" "$wall")
        build_row "$len" "$more" "$version" '--base, the version alone'
        measure "$weald" build --base "$work/base.weald" --force --progress none "$tree" "$work/over.weald"
        build_row "$(stat -c %s "$work/over.weald")" "$more" "$version" '--base, the whole forest'
        rm "$work"/{append,base,over}.weald
    done
    # Of one version a new build may grow by next to nothing, or shrink: it is the sum that says something.
    anew_cpu=$(scaled "$anew_cpu" "$count" '%.2f') anew_wall=$(scaled "$anew_wall" "$count" '%.2f')
    row 'all' 'built anew' "$sum_more" 1.00 "$anew_cpu" 1.00 "$anew_wall" 1.00
    cpu=$cpu_append wall=$wall_append
    build_row "$sum_append" "$sum_more" 'all' '--append'
    growth_verdicts append "$sum_append"
    cpu=$cpu_base wall=$wall_base
    build_row "$sum_base" "$sum_more" 'all' '--base, the version alone'
    growth_verdicts base "$sum_base"
}

# growth_verdicts NAME LEN: bytes and time of all versions together.
growth_verdicts() {
    verdict "$1: bytes against new builds" "$(ratio "$2" "$sum_more")" 1.20
    verdict "$1: CPU time against new builds" "$(ratio "$cpu" "$anew_cpu")" 0.10
    verdict "$1: time against new builds" "$(ratio "$wall" "$anew_wall")" 0.10
}

# trees: lines NAME=DIR.
trees() {
    if [ -n "${WEALD_BENCH_TREES:-}" ]; then
        tr ' ' '\n' <<<"$WEALD_BENCH_TREES"
        return
    fi
    printf 'forest=%s\njudge=%s\ntoolchain=%s\n' "$forest" "$out/judge" "$(cd "$root" && rustc --print sysroot)"
}

make_trees() {
    forest=${WEALD_FOREST:-$out/forest}
    if [ -z "${WEALD_FOREST:-}" ]; then
        step "the small forest, from the registries (kept in $forest)"
        bash "$root/bench/make-forest.sh" "$root/bench/forest-small.list" "$forest"
    fi
    if [ -z "${WEALD_BENCH_TREES:-}" ]; then
        step "the forest that nothing was tuned on (kept in $out/judge)"
        bash "$root/bench/make-forest.sh" "$root/bench/forest-judge.list" "$out/judge"
    fi
}

clean_place() { [ -z "$place" ] || rm -rf "$place"; }

has_part() { [[ " $parts " == *" $1 "* ]]; }

# one_tree NAME DIR
one_tree() {
    if has_part sizes; then sizes "$1" "$2"; fi
    if has_part reading; then reading "$1" "$2"; fi
    if has_part extraction; then extraction "$1" "$2"; fi
    rm -f "$work/$1"-*.weald
}

run() {
    each_tree one_tree
    if has_part speed; then speed "$forest"; fi
    if has_part torture; then torture; fi
    if has_part append; then append "$forest"; fi
    targets
}

need cargo mksquashfs mkfs.erofs /usr/bin/time zstd xz zpaq lrzip borg restic perl openssl
build_programs
mkdir -p "$out"
: >"$out/log"
make_work
# What is being extracted into memory.
place=
trap "clean_work; clean_place; give_free_pages" EXIT
keep_free_pages >"$work/free-pages"
free_pages=$(cat "$work/free-pages")
make_trees
run >"$out/results-build.part"
mv "$out/results-build.part" "$out/results-build.md"
cat "$out/results-build.md"
