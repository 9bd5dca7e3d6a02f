#!/bin/bash
# soak-mount.sh [MINUTES]: a hundred images mounted, read in full and unmounted by one server, again and again; says each round what the server
# holds, and fails where that grows: descriptors, memory, mounts.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=many.sh
. "$(dirname "$0")/many.sh"

minutes=${1:-60}
COUNT=100
CACHE_MIB=64
# Rounds after which the server holds whatever it will: threads, arenas of the allocator.
WARM_ROUNDS=3
# What may come and go between rounds that are alike.
DESCRIPTORS_MORE=4
MIB_MORE=32
MIB_MAX=$((CACHE_MIB + 512))

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
