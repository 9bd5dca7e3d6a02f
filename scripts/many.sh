# A hundred small images under one server; sourced by bench-mount.sh and soak-mount.sh after lib.sh.
# shellcheck shell=bash disable=SC2154 # $work and $weald are theirs

# Readers at once.
READERS=8

# make_many COUNT: so many different images, a few files each, 100 KB to 1 MB, as $work/many/N.weald; what is in them in $work/many/N.sums.
make_many() {
    local index dir file
    mkdir -p "$work/many"
    for index in $(seq "$1"); do
        dir=$work/source
        mkdir "$dir"
        for file in 1 2 3 4 5; do
            # Half of it compresses; every byte depends on both numbers.
            head -c $((20000 * file + 1000 * index)) /dev/zero | openssl enc -aes-128-ctr -pass "pass:$index.$file" -nosalt -pbkdf2 -iter 1 >"$dir/$file"
            seq -f "$index.$file.%.0f" 5000 >"$dir/$file.text"
        done
        (cd "$dir" && b2sum -- *) >"$work/many/$index.sums"
        "$weald" build --quiet "$dir" "$work/many/$index.weald"
        rm -r "$dir"
    done
}

# serve_many WORD...: starts a server, $server, with these words of `weald serve`; it runs until unserve_many.
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

# read_many COUNT: every file of all mounts, by several readers; fails on any difference.
read_many() {
    # shellcheck disable=SC2016 # for the inner shell
    seq "$1" | xargs -P "$READERS" -I '{}' sh -c 'cd "$0/mnt/$1" && b2sum --quiet -c "$0/many/$1.sums"' "$work" '{}' || die "something was read wrongly"
}

# server_number KEY: what the server says of itself.
server_number() { "$weald" mounts --json | grep '"type":"server"' | grep -o "\"$1\":[0-9]*" | head -n1 | cut -d: -f2; }

server_mib() { server_number resident_len | awk '{ printf "%.1f", $1 / 1048576 }'; }
