#!/bin/bash
# demo.sh [DIR]: packs a forest (or the tree DIR), mounts it, compares it with its source byte for
# byte, and shows size, CPU time and memory beside SquashFS, and beside DwarFS if mkdwarfs is
# installed. It ends with a volume that is killed and opened again. Exit status 0 only if the trees are equal.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Downloads eight versions of a package from PyPI with pip.
fetch() {
    step "bench/make-forest.sh: eight versions of two packages from PyPI"
    bash "$root/bench/make-forest.sh" "$root/bench/forest-demo.list" "$work/forest"
    tree=$work/forest
}

# measured NAME FILE COMMAND...: runs the command, which writes FILE, and adds a row to the table.
measured() {
    local name=$1 file=$2 cost
    shift 2
    step "$*"
    # The kernel reports CPU time and peak memory of the command and its child processes.
    cost=$(python3 -I - "$@" <<'PYTHON'
import os, sys
pid = os.fork()
if pid == 0:
    os.dup2(2, 1)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(f"{usage.ru_utime + usage.ru_stime:.1f} {usage.ru_maxrss // 1024}")
sys.exit(os.waitstatus_to_exitcode(status) != 0)
PYTHON
    ) || die "$1 failed"
    rows+=("$(stat -c %s "$file") $cost $name")
}

pack() {
    rows=()
    measured "Weald" "$work/tree.weald" "$weald" build "$tree" "$work/tree.weald"
}

list() {
    step "weald mount: the forest, as ls shows it"
    mkdir "$work/mnt"
    "$weald" mount "$work/tree.weald" "$work/mnt"
    ls "$work/mnt"/* | head -n 12
    say "$(find "$work/mnt" | wc -l) entries are there"
    if touch "$work/mnt/new" 2>/dev/null; then die "the mount can be written to"; fi
}

compare() {
    step "rsync -aHAXn --checksum --itemize-changes --delete: source against mount"
    rsync_differences "$tree" "$work/mnt" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the mounted tree differs from $tree"
    }
    say "nothing differs"
}

unmount() {
    step "weald umount"
    "$weald" umount "$work/mnt"
    if mountpoint -q "$work/mnt"; then die "still mounted"; fi
}

pack_with_others() {
    local squashfs=(mksquashfs "$tree" "$work/tree.squashfs" -noappend -comp zstd -b 1M -no-progress -quiet)
    measured "Weald, level 5" "$work/tree5.weald" "$weald" build -l 5 "$tree" "$work/tree5.weald"
    measured "SquashFS" "$work/tree.squashfs" "${squashfs[@]}"
    measured "SquashFS, zstd 22" "$work/tree.squashfs" "${squashfs[@]}" -Xcompression-level 22
    if command -v mkdwarfs >/dev/null; then
        measured DwarFS "$work/tree.dwarfs" mkdwarfs -i "$tree" -o "$work/tree.dwarfs" --no-progress
    else
        say "mkdwarfs is not installed: no row for DwarFS ('bash scripts/build-dwarfs.sh' builds it, 'make bench' measures it)"
    fi
}

table() {
    local tree_bytes row name len cpu memory
    tree_bytes=$(tree_len "$tree")
    printf '\n%-18s %10s %12s %8s %12s\n' "" size "of the tree" "CPU s" "memory, MiB"
    printf '%-18s %10s %12s %8s %12s\n' "the tree" "$(human "$tree_bytes")" 100% "" ""
    for row in "${rows[@]}"; do
        read -r len cpu memory name <<<"$row"
        printf '%-18s %10s %11s%% %8s %12s\n' "$name" "$(human "$len")" \
            "$(awk -v a="$len" -v b="$tree_bytes" 'BEGIN { printf "%.1f", 100 * a / b }')" "$cpu" "$memory"
    done
}

# Puts two versions of a package into a store, mounts one of them and shows what they share.
store() {
    local versions old new
    # Of a tree without packages, its first two directories.
    mapfile -t versions < <(find "$tree" -mindepth 1 -maxdepth 3 -path '*/django/*' -type d | sort | tail -n 2)
    if [ ${#versions[@]} -lt 2 ]; then
        mapfile -t versions < <(find "$tree" -mindepth 1 -maxdepth 1 -type d | sort | head -n 2)
    fi
    if [ ${#versions[@]} -lt 2 ]; then
        say "$tree has no two directories: no store of two versions"
        return
    fi
    old=$(basename "$(dirname "${versions[0]}")")-$(basename "${versions[0]}")
    new=$(basename "$(dirname "${versions[1]}")")-$(basename "${versions[1]}")
    step "weald store add: $old and $new in one store"
    "$weald" store create --quiet "$work/store"
    "$weald" store add --quiet "$work/store" "${versions[0]}" --name "$old"
    "$weald" store add --quiet "$work/store" "${versions[1]}" --name "$new"
    "$weald" store ls "$work/store"
    "$weald" diff --quiet "$work/store:$new" "${versions[1]}" || die "$new in the store differs from ${versions[1]}"
    "$weald" store check --data "$work/store"
    step "weald store info: what the two versions share"
    "$weald" store info "$work/store"
}

# Mounts a version of the store by the kernel, without a server, and compares every byte.
kernel_mount() {
    if [ "$(id -u)" != 0 ]; then
        say "weald mount --kernel needs root: not shown"
        return
    fi
    if ! grep -qw erofs /proc/filesystems || ! grep -qw overlay /proc/filesystems; then
        say "this kernel has no EROFS or no overlayfs: weald mount --kernel is not shown"
        return
    fi
    local version
    version=$("$weald" store ls "$work/store" | awk 'END { print $NF }')
    mkdir "$work/kernel"
    step "weald mount --kernel $version: by EROFS and overlayfs, without a server"
    "$weald" mount --kernel "$work/store:$version" "$work/kernel"
    "$weald" mounts
    "$weald" diff --quiet "$work/store:$version" "$work/kernel" || die "the mount by the kernel differs from $version"
    "$weald" umount "$work/kernel"
    "$weald" store gc --views "$work/store"
}

# Publishes the image to a real S3 server on this machine, and mounts it from there.
url() {
    local gateway=$target/tools/versitygw port differences=
    [ -x "$gateway" ] || gateway=versitygw
    port=$(python3 -I -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    mkdir -p "$work/s3/bucket" "$work/url"
    export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-secret AWS_ENDPOINT_URL=http://127.0.0.1:$port
    step "versitygw: an S3 server on this machine"
    ROOT_ACCESS_KEY=demo ROOT_SECRET_KEY=demo-secret "$gateway" --port "127.0.0.1:$port" \
        posix "$work/s3" >"$work/s3.log" 2>&1 &
    gateway=$!
    for _ in $(seq 100); do
        (: </dev/tcp/127.0.0.1/"$port") 2>/dev/null && break
        sleep 0.1
    done
    step "weald publish: the image into a bucket"
    "$weald" publish "$work/tree.weald" s3://bucket/tree.weald
    step "weald mount s3://bucket/tree.weald"
    "$weald" mount --url-cache "$work/url-cache,256M" s3://bucket/tree.weald "$work/url"
    rsync_differences "$tree" "$work/url" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the tree from the bucket differs from $tree"
    }
    say "nothing differs; $(grep -c ' GET ' "$work/s3.log") requests read it"
    "$weald" umount "$work/url"
    kill "$gateway"
    wait "$gateway" || true
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_ENDPOINT_URL
}

# stored_bytes: bytes of segments and tables of the volume's store.
stored_bytes() { du -s --block-size=1 "$work/volumes" | cut -f1; }

# Copies the tree onto a volume, twice, kills the server, opens the volume again and compares.
volume() {
    local first second pid copy
    step "weald volume create, weald mount: a file system that can change"
    "$weald" store create --quiet "$work/volumes"
    "$weald" volume create "$work/volumes:demo"
    mkdir "$work/volume"
    "$weald" mount "$work/volumes:demo" "$work/volume"
    step "rsync -aHAX: the tree onto the volume"
    rsync -aHAX "$tree/" "$work/volume/first/"
    sync "$work/volume"
    first=$(stored_bytes)
    step "cp -a: a second copy"
    cp -a "$work/volume/first" "$work/volume/second"
    sync "$work/volume"
    second=$(stored_bytes)
    "$weald" volume stat "$work/volumes:demo"
    say "the second copy takes $(human $((second - first))), $(awk -v a=$((second - first)) \
        -v b="$(tree_len "$tree")" 'BEGIN { printf "%.2f", 100 * a / b }')% of the tree"
    pid=$("$weald" volume info --json "$work/volumes:demo" | python3 -I -c 'import json, sys; print(json.load(sys.stdin)["server_pid"])')
    step "kill -9 $pid: the server of the volume"
    kill -9 "$pid"
    unmount_at_once "$work/volume"
    "$weald" mount "$work/volumes:demo" "$work/volume"
    for copy in first second; do
        rsync_differences "$tree" "$work/volume/$copy" --hard-links || {
            head -n 50 <<<"$differences" >&2
            die "the $copy copy on the volume differs from $tree"
        }
    done
    say "nothing differs after the server was killed"
    "$weald" umount "$work/volume"
    "$weald" volume check --data "$work/volumes:demo"
}

# Moves the volume's data to a tier and back.
tier() {
    step "weald tier: the volume's data moves to another directory, and back"
    "$weald" tier add "$work/volumes" "$work/tier" --name slow --same-disk
    "$weald" mount "$work/volumes:demo" "$work/volume"
    "$weald" tier move "$work/volumes:demo" --to slow
    "$weald" tier stat "$work/volumes"
    rsync_differences "$tree" "$work/volume/first" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the volume whose data moved differs from $tree"
    }
    "$weald" tier move "$work/volumes:demo" --to home
    "$weald" umount "$work/volume"
    "$weald" tier drain "$work/volumes" slow
    "$weald" tier remove "$work/volumes" slow
    "$weald" volume check --data "$work/volumes:demo"
    say "nothing differs after the data moved to a tier and back"
}

# Takes a snapshot, loses the tree, and brings it back.
snapshot() {
    step "weald snapshot: a state that stays"
    "$weald" mount "$work/volumes:demo" "$work/volume"
    "$weald" snapshot create "$work/volumes:demo@before"
    step "rm -rf: the tree is lost"
    rm -rf "$work/volume/first"
    rsync_differences "$tree" "$work/volume/.snapshots/before/first" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the snapshot on the mount differs from $tree"
    }
    "$weald" umount "$work/volume"
    "$weald" snapshot ls "$work/volumes:demo"
    "$weald" snapshot rollback "$work/volumes:demo@before"
    "$weald" mount "$work/volumes:demo" "$work/volume"
    rsync_differences "$tree" "$work/volume/first" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the volume that was rolled back differs from $tree"
    }
    "$weald" umount "$work/volume"
    "$weald" snapshot rm "$work/volumes:demo@before"
    "$weald" volume check --data "$work/volumes:demo"
    say "nothing differs after the volume was rolled back"
}

# Backs the volume's store up, removes the store, and restores it from the backup.
replica() {
    step "weald store backup: all that the volume's store has, in another place"
    "$weald" store backup "$work/volumes" "$work/backup"
    "$weald" replica verify "$work/backup"
    step "rm -r: the store is lost"
    rm -r "$work/volumes"
    step "weald replica restore: the store again"
    "$weald" replica restore "$work/backup" "$work/volumes"
    "$weald" mount "$work/volumes:demo" "$work/volume"
    rsync_differences "$tree" "$work/volume/first" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the volume that was restored differs from $tree"
    }
    say "nothing differs after the store was restored from its replica"
    "$weald" umount "$work/volume"
}

need cargo rsync mksquashfs mountpoint python3
need_fuse
build_programs
start=$(seconds)
make_work
tree=${1:-${WEALD_DEMO_TREE:-}}
[ -n "$tree" ] || fetch
[ -d "$tree" ] || die "$tree: not a directory"
pack
list
compare
unmount
url
pack_with_others
table
store
kernel_mount
volume
snapshot
tier
replica
say "demo: done in $(since "$start") s"
