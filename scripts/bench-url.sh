#!/usr/bin/env bash
# An image in a bucket of a real S3 server on this machine, over a link with a delay and a bandwidth:
# mounted by URL, with and without copies on disk from an earlier mount, beside a download of the whole
# image, and beside a SquashFS image on rclone mount. Prints seconds and bytes of each.
#
# usage: bench-url.sh [ROUND_TRIP_MS [MB_PER_S]]     20 ms and 50 MB/s; needs root and the network: pip
#        makes four environments with numpy and scipy
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need_root bench-url
need_fuse
need cargo mksquashfs rclone python3
profile=${WEALD_PROFILE:-release} build_programs
cargo build --release --locked --quiet -p weald-testkit --example link
delay=${1:-20}
rate=${2:-50}
work=$(mktemp -d "${TMPDIR:-/tmp}/weald-url.XXXXXX")
chmod 755 "$work"
mkdir -m 700 "$work/run"
mkdir -p "$work/s3/bucket" "$work/mnt" "$work/rclone" "$work/trees"
export WEALD_RUNTIME_DIR=$work/run
gateway=
end() {
    umount "$work/mnt" 2>/dev/null || true
    umount "$work/rclone" 2>/dev/null || true
    [ -z "$gateway" ] || kill "$gateway" || true
    rm -rf "$work"
}
trap end EXIT

environments() {
    local pair
    for pair in 1.26.4,1.13.1 2.0.2,1.14.1 2.1.3,1.15.1 2.2.1,1.15.2; do
        python3 -P -m pip install --quiet --no-compile --target "$work/trees/numpy-${pair%,*}" \
            "numpy==${pair%,*}" "scipy==${pair#*,}"
    done
}

free_port() { python3 -I -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
received() {
    echo >&"${LINK[1]}"
    read -r -u "${LINK[0]}" bytes
    echo "$bytes"
}

step "four environments with numpy and scipy"
environments
"$weald" build -q "$work/trees" "$work/tree.weald"
mksquashfs "$work/trees" "$work/s3/bucket/tree.squashfs" -noappend -comp zstd -no-progress -quiet
port=$(free_port)
program=$target/tools/versitygw
[ -x "$program" ] || program=versitygw
ROOT_ACCESS_KEY=bench ROOT_SECRET_KEY=bench-secret "$program" --port "127.0.0.1:$port" posix "$work/s3" \
    >"$work/s3.log" 2>&1 &
gateway=$!
coproc LINK { "$target/release/examples/link" 127.0.0.1:0 "127.0.0.1:$port" "$delay" "$rate"; }
read -r -u "${LINK[0]}" address
export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=bench-secret AWS_ENDPOINT_URL=http://$address
export RCLONE_CONFIG_S_TYPE=s3 RCLONE_CONFIG_S_PROVIDER=Other RCLONE_CONFIG_S_ENDPOINT=$AWS_ENDPOINT_URL
export RCLONE_CONFIG_S_ACCESS_KEY_ID=bench RCLONE_CONFIG_S_SECRET_ACCESS_KEY=bench-secret
# rclone fails with an authority in it, even without TLS.
unset AWS_CA_BUNDLE
sleep 1
AWS_ENDPOINT_URL=http://127.0.0.1:$port "$weald" publish -q "$work/tree.weald" s3://bucket/tree.weald

start_url() { "$weald" mount s3://bucket/tree.weald "$work/mnt"; }
end_url() { "$weald" umount "$work/mnt"; }
start_cached() { "$weald" mount --url-cache "$work/cache,2G" s3://bucket/tree.weald "$work/mnt"; }
end_cached() { end_url; }
start_download() {
    rclone --quiet copyto S:bucket/tree.weald "$work/copy.weald"
    "$weald" mount "$work/copy.weald" "$work/mnt"
}
end_download() {
    "$weald" umount "$work/mnt"
    rm "$work/copy.weald"
}
start_rclone() {
    rclone --quiet mount --daemon --read-only --vfs-cache-mode full --cache-dir "$work/rclone-cache" \
        S:bucket "$work/rclone"
    mount -t squashfs -o loop,ro "$work/rclone/tree.squashfs" "$work/mnt"
}
end_rclone() {
    umount "$work/mnt"
    umount "$work/rclone"
    rm -rf "$work/rclone-cache"
}

list() { ls -lR "$work/mnt" >/dev/null; }
import() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work/mnt/numpy-2.0.2 python3 -P -c 'import numpy, scipy'; }
one_version() { find "$work/mnt/numpy-2.1.3" -type f -exec cat {} + >/dev/null; }

printf '%-12s %-12s %8s %10s\n' way what s MB
printf '%-12s %-12s %8s %10s\n' "" "images" "" \
    "$(stat -c %s "$work/tree.weald" "$work/s3/bucket/tree.squashfs" | awk '{ printf "%s%.1f", s, $1 / 1e6; s = "/" }')"
start_cached
one_version
import
end_cached
for what in list import one_version; do
    for way in url cached download rclone; do
        sync
        bytes=$(received)
        start=$(date +%s%N)
        "start_$way"
        "$what"
        took=$((($(date +%s%N) - start) / 1000000))
        bytes=$(($(received) - bytes))
        "end_$way"
        awk -v way="$way" -v what="$what" -v ms="$took" -v bytes="$bytes" \
            'BEGIN { printf "%-12s %-12s %8.2f %10.1f\n", way, what, ms / 1000, bytes / 1e6 }'
    done
done
