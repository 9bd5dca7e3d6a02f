#!/bin/bash
# systemd.sh: tests the units and the fstab of docs/mounting.md verbatim under a separate systemd:
# start, reload, kill, stop. That systemd is the first process of new namespaces. It has its own
# /run, /etc/fstab, /etc/systemd/system, /opt, /srv and /usr/local, and ends with this script.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Seconds to wait for a condition.
PATIENCE=60

# block HEADING: prints the first code block after the first line of docs/mounting.md that contains
# HEADING.
block() {
    awk -v words="$1" '
        index($0, words) { seen = 1 }
        /^```/ && seen { if (inside) exit; inside = 1; next }
        inside' "$root/docs/mounting.md"
}

# first_process: prepares the namespaces and becomes systemd.
first_process() {
    local units=$work/units unit
    mount -t tmpfs weald-test /run
    mkdir -p /run/lock /run/systemd
    mount --bind "$units" /etc/systemd/system
    mount --bind "$work/fstab" /etc/fstab
    # Disables the other units that a complete system starts.
    for unit in /lib/systemd/system/{sysinit,sockets,timers,local-fs,multi-user}.target.wants/*; do ln -sfn /dev/null "$units/$(basename "$unit")"; done
    for unit in /opt /srv /var/log; do mount -t tmpfs weald-test $unit; done
    mkdir /opt/tools /srv/f
    cp "$work"/*.weald /srv
    mount -t overlay weald-test -o "lowerdir=$work/local:/usr/local" /usr/local
    mount -t overlay weald-test -o "lowerdir=$work/sbin:/usr/sbin" /usr/sbin
    if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
        umount -R /sys/fs/cgroup
        mount -t tmpfs weald-test /sys/fs/cgroup
        mkdir /sys/fs/cgroup/systemd
        mount -t cgroup -o none,name=systemd weald-test /sys/fs/cgroup/systemd
    fi
    unset WEALD_RUNTIME_DIR
    export container=weald-test
    export SYSTEMD_PROC_CMDLINE='systemd.unit=multi-user.target systemd.log_target=console'
    exec /lib/systemd/systemd --system
}

# inside COMMAND...: runs the command in the namespaces of that systemd.
inside() { nsenter --target "$first" --mount --pid --cgroup -- env -u WEALD_RUNTIME_DIR "$@"; }

# eventually WHAT COMMAND...: waits until the command succeeds.
eventually() {
    local what=$1 _
    shift
    for _ in $(seq $((PATIENCE * 10))); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    inside systemctl --no-pager --full status 'weald-serve.service' '*.mount' >&2 || true
    tail -n 40 "$work/log" >&2
    die "not within $PATIENCE s: $what"
}

main_pid() { inside systemctl show --property MainPID --value weald-serve.service; }

# is_another PID: whether a server runs whose process id differs from PID.
is_another() {
    local pid
    pid=$(main_pid)
    [ "$pid" != 0 ] && [ "$pid" != "$1" ] && inside systemctl is-active --quiet weald-serve.service
}

is_gone() { ! inside test -e "$1"; }

reads_right() { [ "$(inside cat "$1")" = "$2" ]; }

# has_server COUNT PID: whether the process PID serves COUNT mounts.
has_server() { [ "$(inside /usr/local/bin/weald mounts --json | grep '"type":"mount"' | grep -c "\"server_pid\":$2[,}]")" = "$1" ]; }

# start_systemd: starts the separate systemd and waits for the server of the unit.
start_systemd() {
    step 'systemd starts the server and mounts what fstab names'
    unshare --mount --pid --cgroup --fork --mount-proc --kill-child --propagation private bash "$0" first "$work" >"$work/log" 2>&1 </dev/null &
    namespaces=$!
    # The shell must not report the end of this job.
    disown "$namespaces"
    trap 'kill -KILL "$namespaces"; clean_work' EXIT
    eventually 'a first process' pgrep --parent "$namespaces" --exact systemd
    first=$(pgrep --parent "$namespaces" --exact systemd)
    eventually 'the server of the unit' inside systemctl is-active --quiet weald-serve.service
    eventually 'the mount of fstab' reads_right /opt/tools/word tools
    eventually 'one mount in the server of the unit' has_server 1 "$(main_pid)"
}

if [ "${1:-}" = first ]; then
    work=$2
    first_process
fi

need_root 'systemd as the first process of namespaces'
need_fuse
need unshare nsenter /lib/systemd/systemd systemctl pgrep
build_programs
make_work
mkdir -p "$work"/{units,local/bin,sbin,tree}
for name in tools forest; do
    echo $name >"$work/tree/word"
    "$weald" build --quiet "$work/tree" "$work/$name.weald"
done
cp "$weald" "$work/local/bin/weald"
ln -s /usr/local/bin/weald "$work/sbin/mount.weald"
for type in fuse fuseblk; do ln -s /usr/local/bin/weald "$work/sbin/umount.$type.weald"; done
block '/etc/systemd/system/weald-serve.service' >"$work/units/weald-serve.service"
mkdir "$work/units/multi-user.target.wants"
ln -s ../weald-serve.service "$work/units/multi-user.target.wants/"
ln -s /lib/systemd/system/remote-fs.target "$work/units/multi-user.target.wants/"
# The third line shows the words of a container's root.
block 'In `/etc/fstab`' | grep -v '^/srv/root' >"$work/fstab"
[ "$(grep -c weald "$work/fstab")" = 2 ] || die 'docs/mounting.md has no fstab'
start_systemd

step 'a mount that fstab leaves to who asks for it'
inside systemctl start srv-f.automount
reads_right /srv/f/word forest || die 'srv-f.automount has other contents'
has_server 1 "$(main_pid)" || die 'srv-f.mount has no process of its own'

step 'a reload hands over to another process while a file is open'
before=$(main_pid)
# shellcheck disable=SC2016 # for the inner shell
inside sh -c 'exec 3</opt/tools/word; touch /run/open; while [ -e /run/open ]; do sleep 0.05; done; cat <&3 >/run/seen; touch /run/done' &
eventually 'an open file' inside test -e /run/open
inside systemctl reload weald-serve.service
eventually 'another process' is_another "$before"
inside rm /run/open
eventually 'the end of the reader' inside test -e /run/done
reads_right /run/seen tools || die 'who had a file open reads something else'
has_server 1 "$(main_pid)" || die 'the mount was not handed over'

step 'a server that is killed is started anew and brings its mounts back'
before=$(main_pid)
inside kill -KILL "$before"
eventually 'another process' is_another "$before"
# The kernel still has cached what was read before; a listing needs the server.
eventually 'the mount that is back' inside ls /opt/tools
reads_right /opt/tools/word tools || die 'opt-tools.mount has other contents'
has_server 1 "$(main_pid)" || die 'the mount has no server'
inside systemctl restart opt-tools.mount
reads_right /opt/tools/word tools || die 'opt-tools.mount has other contents after a restart'

step 'stopping ends the mounts'
inside systemctl stop weald-serve.service
eventually 'the end of the mount' is_gone /opt/tools/word
say 'systemd: as docs/mounting.md says'
