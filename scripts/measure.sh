# How the benchmarks measure; sourced by the other bench scripts after lib.sh.
# shellcheck shell=bash disable=SC2154,SC2034 # $work, $out and $free_pages are theirs; $cpu, $wall and $rss are for them

# measure COMMAND...: runs it; its CPU seconds in $cpu, wall seconds in $wall, largest resident set in KiB in $rss. What it says
# goes to $out/log. A command that fails ends the run.
measure() {
    local user system
    printf '\n$ %s\n' "$*" >>"$out/log"
    /usr/bin/time --quiet -o "$work/time" -f '%U %S %e %M' "$@" >>"$out/log" 2>&1 || die "$* failed: see $out/log"
    read -r user system wall rss <"$work/time"
    cpu=$(sum "$user" "$system")
}

# CPU seconds that all processes and the kernel have used since boot.
busy_seconds() {
    awk -v hz="$(getconf CLK_TCK)" '$1 == "cpu" { printf "%.2f", ($2 + $3 + $4 + $7 + $8) / hz }' /proc/stat
}

# measure_machine COMMAND...: its wall seconds in $wall; in $cpu what the whole machine was busy meanwhile, servers and kernel
# threads included. True only on a quiet machine.
measure_machine() {
    local start busy
    busy=$(busy_seconds)
    start=$EPOCHREALTIME
    "$@" || die "$* failed"
    wall=$(minus "$EPOCHREALTIME" "$start")
    cpu=$(minus "$(busy_seconds)" "$busy")
}

sum() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a + b }'; }

minus() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a - b }'; }

# scaled NUMBER FACTOR FORMAT
scaled() { awk -v n="$1" -v f="$2" -v form="$3" 'BEGIN { printf form, n * f }'; }

# median NUMBER...
median() { printf '%s\n' "$@" | sort -g | awk '{ n[NR] = $1 } END { print n[int((NR + 1) / 2)] }'; }

# json_number FILE KEY: a number of a JSON object that has the key once.
json_number() { grep -o "\"$2\":[0-9]*" "$1" | head -n1 | cut -d: -f2; }

# Free blocks from this order on are told to the host of a virtual machine, which takes them away until they are used again.
reported_order=/sys/module/page_reporting/parameters/page_reporting_order

# keep_free_pages: keeps the host from them until give_free_pages, where that can be had; says whether. With each mount that goes a gigabyte of page cache
# is free, and who uses it next would wait for the host.
keep_free_pages() {
    kept_order=$(cat $reported_order 2>/dev/null) || { echo 'not told to a host' && return; }
    # Longer than any block.
    if (echo 11 >$reported_order) 2>/dev/null; then
        echo 'kept from the host meanwhile'
    else
        kept_order=
        echo 'told to the host, which takes them away'
    fi
}

give_free_pages() {
    if [ -n "${kept_order:-}" ]; then echo "$kept_order" >$reported_order; fi
    kept_order=
}

drop_caches() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

# row CELL...: a line of a Markdown table.
row() {
    local cell
    for cell in "$@"; do printf '| %s ' "$cell"; done
    printf '|\n'
}

# table CELL...: the head of one.
table() {
    printf '\n'
    row "$@"
    printf '|---%.0s' "$@"
    printf '|\n'
}

# mount_image KIND IMAGE DIR: kinds are weald and what the kernel knows; dir is the source itself, mounted nowhere.
mount_image() {
    case $1 in
    weald) "$weald" mount "$2" "$3" ;;
    dir) mount --bind "$2" "$3" ;;
    *) mount -t "$1" -o loop,ro "$2" "$3" ;;
    esac
}

unmount_image() {
    case $1 in
    weald) "$weald" umount "$2" ;;
    *) umount "$2" ;;
    esac
}

# The targets and what was found, one line each, told at the end.
verdicts=()

# verdict WHAT FOUND MOST: whether a figure is as asked.
verdict() {
    local word
    word=$(awk -v a="$2" -v b="$3" 'BEGIN { print (a == a + 0 && a <= b) ? "yes" : "NO" }')
    verdicts+=("$(row "$1" "$2" "≤ $3" "$word")")
}

# verdict_least WHAT FOUND LEAST
verdict_least() {
    local word
    word=$(awk -v a="$2" -v b="$3" 'BEGIN { print (a == a + 0 && a >= b) ? "yes" : "NO" }')
    verdicts+=("$(row "$1" "$2" "≥ $3" "$word")")
}

targets() {
    printf '\n## What was asked\n'
    table figure found asked 'as asked'
    printf '%s\n' "${verdicts[@]}"
}

# machine TITLE: what was measured on what; $free_pages is what keep_free_pages said, where it was asked.
machine() {
    printf '# %s\n\n' "$1"
    printf -- '- Weald %s, %s\n' "$("$weald" --version | cut -d' ' -f2)" "$(git -C "$root" describe --always --dirty 2>/dev/null || echo 'no git')"
    printf -- '- %s × %s, %s of memory, Linux %s\n' "$(nproc)" "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n1)" \
        "$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)" "$(uname -r)"
    printf -- '- %s; %s; images on %s\n' "$(mksquashfs -version 2>&1 | sed -n '1s/ (.*//p')" \
        "$(dpkg-query -W -f '${Package} ${Version}' erofs-utils 2>/dev/null || echo mkfs.erofs)" "$(stat -f -c %T "$work")"
    printf -- '- load when it began: %s\n' "$(cut -d' ' -f1-3 /proc/loadavg)"
    if [ -n "${free_pages:-}" ]; then printf -- '- free pages: %s\n' "$free_pages"; fi
}

# each_tree COMMAND...: tells about the machine, then runs the command with name and directory of every tree that `trees` lists as
# NAME=DIR.
each_tree() {
    local line list
    machine Benchmarks
    mapfile -t list < <(trees)
    for line in "${list[@]}"; do
        [ -d "${line#*=}" ] || die "${line#*=}: not a directory"
        "$@" "${line%%=*}" "${line#*=}"
    done
}

# The strongest that this mkfs.erofs can.
erofs_options() {
    if mkfs.erofs --help 2>&1 | grep -qE 'compressors are:.*lzma'; then
        printf -- '-zlzma,9 -C1048576'
    else
        printf -- '-zlz4hc,12 -C1048576'
    fi
}
