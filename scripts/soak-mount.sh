#!/bin/bash
# soak-mount.sh [MINUTES]: one server mounts a hundred images, all files are read, and the images
# are unmounted, in many rounds. Prints the resources of the server after each round, and fails if
# they grow: descriptors, memory, mounts.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

minutes=${1:-60}
COUNT=100
CACHE_MIB=64
# Rounds until the server has all its lasting resources: threads, allocator arenas.
WARM_ROUNDS=3
# Allowed variation of descriptors between equal rounds.
DESCRIPTORS_MORE=4
MIB_MORE=32
MIB_MAX=$((CACHE_MIB + 512))

# Number of parallel readers.
READERS=8

# make_many COUNT: makes COUNT different images with a few files each, 100 KB to 1 MB, as
# $work/many/N.weald. $work/many/N.sums has the digests of the files.
make_many() {
    local index dir file
    mkdir -p "$work/many"
    for index in $(seq "$1"); do
        dir=$work/source
        mkdir "$dir"
        for file in 1 2 3 4 5; do
            # Half of the data compresses; every byte depends on both numbers.
            head -c $((20000 * file + 1000 * index)) /dev/zero | openssl enc -aes-128-ctr -pass "pass:$index.$file" -nosalt -pbkdf2 -iter 1 >"$dir/$file"
            seq -f "$index.$file.%.0f" 5000 >"$dir/$file.text"
        done
        (cd "$dir" && b2sum -- *) >"$work/many/$index.sums"
        "$weald" build --quiet "$dir" "$work/many/$index.weald"
        rm -r "$dir"
    done
}

# serve_many WORD...: starts a server with these arguments of `weald serve`; its process id is
# $server. It runs until unserve_many.
serve_many() {
    "$weald" serve "$@" >>"$work/server.log" 2>&1 &
    server=$!
    until "$weald" mounts --json | grep -q '"type":"server"'; do
        [ -e "/proc/$server/fd" ] || die "the server did not start: $(cat "$work/server.log")"
        sleep 0.01
    done
}

unserve_many() {
    kill -TERM "$server"
    wait "$server" || die "the server failed: $(cat "$work/server.log")"
    server=
}

mount_many() {
    local index
    for index in $(seq "$1"); do
        mkdir -p "$work/mnt/$index"
        "$weald" mount "$work/many/$index.weald" "$work/mnt/$index"
    done
}

umount_many() {
    local index
    for index in $(seq "$1"); do "$weald" umount "$work/mnt/$index"; done
}

# read_many COUNT: reads every file of all mounts with several readers; fails on any difference.
read_many() {
    # shellcheck disable=SC2016 # for the inner shell
    seq "$1" | xargs -P "$READERS" -I '{}' sh -c 'cd "$0/mnt/$1" && b2sum --quiet -c "$0/many/$1.sums"' "$work" '{}' || die "something was read wrongly"
}

# server_number KEY: a figure from the report of the server.
server_number() { "$weald" mounts --json | grep '"type":"server"' | grep -o "\"$1\":[0-9]*" | head -n1 | cut -d: -f2; }

server_mib() { server_number resident_len | awk '{ printf "%.1f", $1 / 1048576 }'; }

# at_most WHAT FOUND MOST
at_most() { awk -v a="$2" -v b="$3" 'BEGIN { exit !(a <= b) }' || die "$1: $2 after $rounds rounds, at most $3 expected"; }

one_round() {
    local full_mib
    mount_many $COUNT
    read_many $COUNT
    read_many $COUNT
    full_mib=$(server_mib) full_descriptors=$(server_number descriptor_count)
    [ "$(server_number mount_count)" = $COUNT ] || die "$(server_number mount_count) mounts, expected $COUNT"
    at_most 'memory with all mounts, MiB' "$full_mib" $MIB_MAX
    umount_many $COUNT
    [ "$(server_number mount_count)" = 0 ] || die "$(server_number mount_count) mounts are left"
    [ -z "$(mounts_below "$work/mnt")" ] || die "the kernel has mounts left"
    mib=$(server_mib) descriptors=$(server_number descriptor_count)
    say "round $rounds: $full_mib MiB and $full_descriptors descriptors with $COUNT mounts, $mib MiB and $descriptors without"
}

need cargo openssl
need_root "mounting without fusermount3"
need_fuse
build_programs
make_work
mkdir "$work/mnt"
make_many $COUNT
serve_many --cache ${CACHE_MIB}M
end=$((SECONDS + minutes * 60)) rounds=0
while [ $SECONDS -lt $end ] || [ $rounds -le $WARM_ROUNDS ]; do
    rounds=$((rounds + 1))
    one_round
    if [ $rounds = $WARM_ROUNDS ]; then
        mib_first=$mib descriptors_first=$descriptors
    elif [ $rounds -gt $WARM_ROUNDS ]; then
        at_most descriptors "$descriptors" $((descriptors_first + DESCRIPTORS_MORE))
        at_most 'memory, MiB' "$mib" "$(awk -v m="$mib_first" -v more=$MIB_MORE 'BEGIN { print m + more }')"
    fi
done
unserve_many
say "soak-mount: $rounds rounds, no growth"
