//! Attacks by another user of the machine: a thread of this process with another user id.

use crate::ground::{Ground, request, send_frame};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Signal, Uid, kill_process};
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use weald_testkit::command::{refused, succeeded, text, weald_path};
use weald_testkit::mounts::{PATIENCE, finish};

/// User "nobody" on most systems; it needs no account.
const ATTACKER: u32 = 65534;

/// Runs `deed` as the attacker.
fn as_attacker<T: Send>(deed: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(ATTACKER);
            // The ids change for this thread only, which also loses all capabilities.
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
            deed()
        });
        thread.join().expect("the attacker")
    })
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path)
        .expect("stat")
        .permissions()
        .mode()
        & 0o777
}

/// Would catch: a server of root that mounts images for other users who reach its socket.
#[test]
fn another_user_gets_no_answer_even_where_modes_were_loosened() {
    let ground = Ground::new();
    ground.build("a");
    fs::create_dir(ground.at("m1")).expect("mkdir");
    fs::create_dir(ground.at("m2")).expect("mkdir");
    fs::remove_dir(&ground.run).expect("made again by the command");
    let mut shell = Command::new("sh");
    let script = "umask 0; exec \"$0\" mount a m1";
    shell.args(["-c", script]).arg(weald_path());
    let shell = shell
        .current_dir(ground.path())
        .env("WEALD_RUNTIME_DIR", &ground.run);
    finish(shell).expect(0);
    let socket = ground.sockets().remove(0);
    assert_eq!((mode(&ground.run), mode(&socket)), (0o700, 0o600));
    let kept_out = as_attacker(|| UnixStream::connect(&socket)).expect_err("modes");
    assert_eq!(kept_out.kind(), std::io::ErrorKind::PermissionDenied);
    set_mode(&ground.run, 0o755);
    set_mode(&socket, 0o666);
    let [image, dir, log] = ["a", "m2", "log"].map(|name| {
        let path = ground.at(name).into_os_string().into_encoded_bytes();
        format!(r#"{{"Unix":{path:?}}}"#)
    });
    let mount = format!(
        r#"{{"image":{image},"dir":{dir},"options":[],"working_dir":{dir},"prefetch":null"#
    );
    let mount = format!(r#"{mount},"record":null,"trace":null,"log":{log}}}"#);
    let request = request(&format!(r#"{{"Mount":{mount}}}"#));
    let answer_len = as_attacker(|| {
        let stream = UnixStream::connect(&socket).expect("the kernel lets it in");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let _ = std::panic::catch_unwind(|| send_frame(&stream, &request));
        (&stream).read(&mut [0; 100]).unwrap_or(0)
    });
    assert_eq!(answer_len, 0, "the server answered");
    assert!(!ground.at("m2/text").exists() && !ground.at("log").exists());
    set_mode(&ground.run, 0o700);
    ground.umount("m1");
    ground.until_unserved();
}

/// Would catch: files that a refused request leaves behind as root.
#[test]
fn a_refused_request_makes_no_file() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    fs::write(ground.at("text"), "garbage ".repeat(5000)).expect("write");
    fs::create_dir(ground.at("m2")).expect("mkdir");
    for words in [["text", "m2"], ["a", "text"]] {
        for option in ["--log", "--trace"] {
            let said = ground.weald(&[&["mount", option, "made"], &words[..]].concat());
            assert_eq!(said.status.code(), Some(2), "{}", text(&said));
            assert!(!ground.at("made").exists(), "{option} {words:?}");
        }
    }
    ground.umount("m1");
}

/// Would catch: sockets in a directory that other users can write to, or behind a symlink that they
/// made.
#[test]
fn unsafe_runtime_directories_are_refused() {
    let mut ground = Ground::new();
    set_mode(&ground.run, 0o755);
    refused(&ground.weald(&["mounts"]), "chmod 700");
    set_mode(&ground.run, 0o700);
    succeeded(&ground.weald(&["mounts"]));
    let link = ground.at("link");
    symlink(&ground.run, &link).expect("link");
    for path in [link.clone(), link.join("")] {
        ground.run = path;
        refused(&ground.weald(&["mounts"]), "symbolic link");
        refused(&ground.weald(&["serve"]), "symbolic link");
    }
}

/// Runs as root with its own `/tmp` and process ids; user 1000 is the victim, user 65534 the
/// attacker. The directory has no sticky bit, so that `fs.protected_symlinks` does not protect it.
/// The program may lie below the `/tmp` that the mount hides: it is open before.
const PLANTED_LINKS: &str = r#"
exec 3< "$0"
mount -t tmpfs -o mode=777 tmpfs /tmp
cd /tmp
cat <&3 > weald; chmod 755 weald; exec 3<&-
mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
mkdir -m 700 evil own; mkdir -m 755 dir
chown 65534:65534 evil; chown 1000:1000 own dir
as() { setpriv --reuid="$1" --regid="$1" --clear-groups env -i PATH="$PATH" "${@:2}" 2>&1; }
as 65534 WEALD_RUNTIME_DIR=/tmp/evil ./weald serve --background --log /tmp/evil/log
chmod 711 evil; chmod 666 evil/*.shared
as 1000 ./weald build -q dir own.image
try() {
    for words in mounts 'serve --background' 'mount own.image dir'; do
        said=$(as 1000 timeout 60 ./weald $words) && status=0 || status=$?
        echo "$1: ${words%% *}: $status: $said"
        as 1000 ./weald umount dir > /dev/null || true
    done
}
try nothing
rm -r weald-1000 || true
for target in evil own missing; do
    as 65534 ln -s "$target" weald-1000
    try "link to $target"
    rm weald-1000
done
as 65534 mkdir -m 711 weald-1000
try directory
rm -r weald-1000; chmod 700 evil
echo "written: $(find own missing dir 2> /dev/null | xargs)"
echo "attacker's server: $(as 65534 WEALD_RUNTIME_DIR=/tmp/evil ./weald mounts)"
as 1000 ./weald serve --background
stat -c 'made: %u %a' weald-1000
"#;

/// Would catch: a symlink of another user at the default path of the runtime directory that leads
/// to that user's server, or below whose target sockets are created.
#[test]
fn a_planted_symlink_at_the_default_path_is_not_followed() {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation=private", "--pid", "--fork"])
        .args([
            "--kill-child",
            "--mount-proc",
            "bash",
            "-euc",
            PLANTED_LINKS,
        ])
        .arg(weald_path());
    let said = finish(&mut command).expect(0);
    let (found, stderr) = (said.text(), &said.stderr);
    let mut lines = found.lines();
    for command in ["mounts", "serve", "mount"] {
        assert_eq!(lines.next(), Some(&*format!("nothing: {command}: 0: ")));
    }
    for what in [
        "link to evil",
        "link to own",
        "link to missing",
        "directory",
    ] {
        let reason = match what {
            "directory" => "expected a directory of user 1000, found one of user 65534",
            _ => "expected a directory for sockets, found a symbolic link of user 65534",
        };
        // A mount then gets its own server.
        for (command, status) in [("mounts", 2), ("serve", 2), ("mount", 0)] {
            let line = lines.next().unwrap_or_default();
            let expected = format!("{what}: {command}: {status}: weald: /tmp/weald-1000: {reason}");
            assert!(line.starts_with(&expected), "{found}{stderr}");
        }
    }
    assert_eq!(lines.next(), Some("written: own dir"), "{found}");
    let untouched = lines.next().unwrap_or_default();
    assert!(untouched.contains(": 0 mounts,"), "{found}");
    assert_eq!(lines.next(), Some("made: 1000 700"), "{found}");
}

/// Would catch: a client that trusts a server of another user, above all in a hand-over.
#[test]
fn a_server_of_another_user_is_not_trusted() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let socket = ground.sockets().remove(0);
    ground.umount("m1");
    ground.until_unserved();
    let _ = fs::remove_file(&socket);
    set_mode(&ground.run, 0o777);
    let squatter = as_attacker(|| UnixListener::bind(&socket)).expect("squatted");
    set_mode(&ground.run, 0o700);
    squatter.set_nonblocking(true).expect("nonblocking");
    let expected = "user 65534, expected user 0";
    for words in [
        &["mount", "a", "m1"][..],
        &["serve", "--take-over"],
        &["serve"],
    ] {
        let said = finish(&mut ground.command(words)).expect(2);
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
    let said = finish(&mut ground.command(&["mounts"])).expect(0);
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    // The fake server got connections, but no data.
    while let Ok((stream, _)) = squatter.accept() {
        assert_eq!(
            (&stream).read(&mut [0; 100]).unwrap_or(0),
            0,
            "a request was sent"
        );
    }
}

/// Connects until the queue of the server is full.
fn fill(address: &SocketAddrUnix) -> Vec<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connect = || {
        let kind = SocketType::STREAM;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
        rustix::net::connect(&socket, address).ok()?;
        Some(socket)
    };
    std::iter::from_fn(connect).collect()
}

/// Would catch: 'weald umount' that waits for ever for a socket whose queue any user can fill.
#[test]
fn another_user_cannot_delay_umount() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let device = ground.reports("mount")[0]["device"]
        .as_str()
        .expect("text")
        .to_owned();
    let name = format!("weald-mount-{device}");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    // Fill the queue of a socket with this address, and bind the address if it is free.
    let (filled, _squatted) = as_attacker(|| {
        let kind = SocketType::STREAM;
        let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).expect("socket");
        let filled = fill(&address);
        let bound = rustix::net::bind(&socket, &address);
        let _ = bound.and_then(|()| rustix::net::listen(&socket, 1));
        (filled, socket)
    });
    finish(&mut ground.command(&["umount", "m1"])).expect(0);
    assert!(filled.is_empty(), "a server had an abstract socket");
    ground.until_unserved();
}

/// Would catch: commands that wait for ever for a stopped server.
#[test]
fn a_stopped_server_with_a_full_queue_delays_no_command() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let server = ground.server();
    kill_process(server, Signal::STOP).expect("stop");
    let address = SocketAddrUnix::new(ground.sockets().remove(0)).expect("an address");
    let filled = fill(&address);
    assert!(!filled.is_empty());
    let reported = finish(&mut ground.command(&["mounts"])).expect(0);
    assert!(
        reported.stderr.contains("has taken no connection"),
        "{}",
        reported.stderr
    );
    let reported = finish(&mut ground.command(&["umount", "m1"])).expect(0);
    assert!(
        reported.stderr.contains("still has the image open"),
        "{}",
        reported.stderr
    );
    kill_process(server, Signal::CONT).expect("continue");
    drop(filled);
    ground.until_unserved();
}
