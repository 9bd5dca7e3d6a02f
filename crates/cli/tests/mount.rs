//! `weald mount`, `weald umount` and `mount.weald` as users call them. Needs root and `/dev/fuse`.
#![allow(missing_docs)]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use weald_builder::{BuildOptions, Silent, build_image};
use weald_format::Digest;
use weald_testkit::command::{refused, succeeded, text, weald_bin};
use weald_testkit::mounts::{eventually, mount_lines};

/// A directory with a source tree, an image of it and a mount point; unmounts when dropped.
struct Bench {
    base: TempDir,
    digest: Digest,
}

impl Bench {
    fn new() -> Self {
        let base = tempfile::tempdir().expect("temporary directory");
        fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        let at = |name: &str| base.path().join(name);
        fs::create_dir_all(at("source/dir")).expect("mkdir");
        fs::create_dir(at("mnt")).expect("mkdir");
        fs::write(at("source/hello"), "Hello, Weald\n").expect("write");
        // Random bytes are stored raw, so that the test can find and damage them in the image.
        let noise: Vec<u8> = (0u32..50_000)
            .flat_map(|i| blake3::hash(&i.to_le_bytes()).as_bytes()[..4].to_vec())
            .collect();
        fs::write(at("source/dir/noise"), noise).expect("write");
        let options = BuildOptions::level(1).expect("level");
        let report =
            build_image(&at("source"), &at("image"), false, &options, &Silent).expect("build");
        Self {
            digest: report.image_digest,
            base,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// Runs `weald` in the directory of the bench.
    fn weald(&self, args: &[&str]) -> Output {
        Command::new(weald_bin())
            .args(args)
            .current_dir(self.base.path())
            .env("WEALD_RUNTIME_DIR", self.at("run"))
            .output()
            .expect("weald")
    }

    fn sh(&self, script: &str) -> Output {
        let mut command = Command::new("bash");
        command
            .args(["-euc", script])
            .current_dir(self.base.path())
            .env("WEALD_RUNTIME_DIR", self.at("run"))
            .env("WEALD", weald_bin());
        command.output().expect("bash")
    }

    fn mount(&self, options: &str) {
        succeeded(&self.weald(&["mount", "image", "mnt", "-o", options]));
    }

    fn is_mounted(&self) -> bool {
        self.at("mnt/hello").exists()
    }

    /// Process ids of the servers of this bench.
    fn servers(&self) -> Vec<u64> {
        let reported = self.weald(&["mounts", "--json"]);
        let lines = String::from_utf8(reported.stdout).expect("UTF-8");
        let objects = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let servers = objects.filter(|object: &serde_json::Value| object["type"] == "server");
        servers
            .map(|server| server["pid"].as_u64().expect("a number"))
            .collect()
    }

    fn server(&self) -> u64 {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "{servers:?}");
        servers[0]
    }

    /// Whether a server of this bench answers, in any mount namespace.
    fn is_served(&self) -> bool {
        let dirs = [self.at("run"), self.at("nobody")];
        let entries = dirs
            .iter()
            .filter_map(|dir| fs::read_dir(dir).ok())
            .flatten();
        let mut sockets = entries.map(|entry| entry.expect("entry").path());
        sockets.any(|socket| UnixStream::connect(socket).is_ok())
    }

    /// Starts a server in the foreground and waits until its mount is live.
    fn foreground(&self) -> Child {
        let mut command = Command::new(weald_bin());
        command
            .args(["mount", "-f", "image", "mnt"])
            .env("WEALD_RUNTIME_DIR", self.at("run"))
            .current_dir(self.base.path());
        let child = command.stderr(Stdio::piped()).spawn().expect("weald");
        eventually("the mount", || self.is_mounted());
        child
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.at("mnt"), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Standard error of `child`, to its end.
fn stderr_of(child: &mut Child) -> String {
    let stderr = child.stderr.take().expect("stderr");
    std::io::read_to_string(stderr).expect("UTF-8")
}

#[test]
fn a_mount_is_live_at_once_and_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.mount("");
    assert_eq!(
        fs::read(bench.at("mnt/hello")).expect("read"),
        b"Hello, Weald\n"
    );
    assert_eq!(bench.servers().len(), 1);
    succeeded(&bench.weald(&["umount", "mnt"]));
    assert!(!bench.is_mounted());
    eventually("the end of the server", || !bench.is_served());
    succeeded(&bench.weald(&["mount", "--isolated", "image", "mnt"]));
    succeeded(&bench.weald(&["umount", "mnt"]));
    assert!(
        !bench.is_served(),
        "umount waits for the end of a server that served nothing else"
    );
}

#[test]
fn the_server_releases_terminal_session_and_directory() {
    let bench = Bench::new();
    bench.mount("");
    let pid = bench.server();
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).expect("readlink");
    assert_eq!(link("cwd"), Path::new("/"));
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(fd), Path::new("/dev/null"));
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let session = stat.rsplit(") ").next().expect("fields").split(' ').nth(3);
    assert_eq!(
        session,
        Some(pid.to_string().as_str()),
        "leader of a session of its own"
    );
}

#[test]
fn umount_of_the_system_ends_the_server_too() {
    let bench = Bench::new();
    bench.mount("");
    succeeded(&bench.sh("umount mnt"));
    eventually("the end of the server", || !bench.is_served());
}

#[test]
fn signals_unmount_and_end_with_success() {
    let bench = Bench::new();
    for signal in ["INT", "TERM", "HUP"] {
        let mut child = bench.foreground();
        succeeded(&bench.sh(&format!("kill -{signal} {}", child.id())));
        assert_eq!(child.wait().expect("end").code(), Some(0), "SIG{signal}");
        assert!(!bench.is_mounted(), "SIG{signal}");
        bench.mount("");
        succeeded(&bench.sh(&format!("kill -{signal} {}", bench.server())));
        eventually("the end of the server", || !bench.is_served());
        assert!(!bench.is_mounted(), "SIG{signal} in the background");
    }
}

#[test]
fn a_second_signal_ends_a_server_with_users() {
    let bench = Bench::new();
    let mut child = bench.foreground();
    let file = File::open(bench.at("mnt/hello")).expect("open");
    succeeded(&bench.sh(&format!("kill -TERM {}", child.id())));
    eventually("the unmount", || !bench.is_mounted());
    let mut word = [0; 5];
    file.read_exact_at(&mut word, 0).expect("still served");
    assert_eq!(child.try_wait().expect("wait"), None);
    // A signal within a second counts as the same request; an impatient user repeats it.
    let mut status = None;
    eventually("the end of the server", || {
        succeeded(&bench.sh(&format!("kill -TERM {}", child.id())));
        status = child.try_wait().expect("wait");
        status.is_some()
    });
    assert_eq!(status.expect("ended").code(), Some(2));
    let reported = stderr_of(&mut child);
    assert!(reported.contains("in use"), "{reported}");
}

#[test]
fn a_foreground_mount_ends_with_umount() {
    let bench = Bench::new();
    let mut child = bench.foreground();
    succeeded(&bench.weald(&["umount", "mnt"]));
    assert_eq!(child.wait().expect("end").code(), Some(0));
    let reported = stderr_of(&mut child);
    assert_eq!(reported, "");
}

#[test]
fn impossible_mounts_are_refused_with_a_reason() {
    let bench = Bench::new();
    fs::write(bench.at("text"), "x".repeat(5000)).expect("write");
    fs::write(
        bench.at("cut"),
        &fs::read(bench.at("image")).expect("read")[..9000],
    )
    .expect("write");
    for foreground in [false, true] {
        let mount = |words: &[&str]| {
            let flag: &[&str] = if foreground { &["--foreground"] } else { &[] };
            bench.weald(&[&["mount"], words, flag].concat())
        };
        refused(&mount(&["missing", "mnt"]), "missing: ");
        refused(&mount(&["image", "missing"]), "missing: ");
        refused(&mount(&["image", "text"]), "not a directory");
        refused(&mount(&["text", "mnt"]), "text: not a Weald image");
        refused(&mount(&["cut", "mnt"]), "cut: ");
        refused(&mount(&["source", "mnt"]), "source: ");
        refused(
            &mount(&["image", "mnt", "-o", "rw"]),
            "option 'rw': an image is read-only",
        );
        refused(
            &mount(&["image", "mnt", "-o", "fast"]),
            "option 'fast': there is no such option",
        );
        refused(
            &mount(&["image", "mnt", "-o", "subdir=none"]),
            "subdir=none: the image has no none",
        );
        let other = Digest::default().to_string();
        refused(
            &mount(&["image", "mnt", "-o", &format!("digest={other}")]),
            &format!("image digest: expected {}", &other[..12]),
        );
        assert!(!bench.is_mounted());
    }
    eventually("the end of the servers", || !bench.is_served());
}

#[test]
fn the_right_digest_is_accepted_and_options_take_effect() {
    let bench = Bench::new();
    bench.mount(&format!(
        "digest={},uid=1234,noexec,cachesize=8M,workers=1,max_readahead=384K",
        bench.digest
    ));
    let mounts = mount_lines("/proc/mounts");
    let dir = bench
        .at("mnt")
        .into_os_string()
        .into_string()
        .expect("UTF-8");
    let line = mounts
        .iter()
        .find(|line| line.contains(&dir))
        .expect("mounted");
    let image = bench
        .at("image")
        .into_os_string()
        .into_string()
        .expect("UTF-8");
    assert!(
        line.starts_with(&format!("{image} {dir} fuse.weald ro,nosuid,nodev,noexec")),
        "{line}"
    );
    let owner = bench.sh("stat -c %u mnt/hello");
    assert_eq!(text(&owner), "1234\n");
    let read_ahead = "cat /sys/class/bdi/$(mountpoint -d mnt)/read_ahead_kb";
    assert_eq!(text(&bench.sh(read_ahead)), "384\n");
}

/// Would catch: a long readahead for compressed images, which decodes data around every page of a
/// program in vain, or a short one for uncompressed images.
#[test]
fn kernel_readahead_is_longer_for_uncompressed_images() {
    let bench = Bench::new();
    succeeded(
        &bench
            .sh("mkdir text && seq 200000 > text/numbers && $WEALD build --quiet text text.weald"),
    );
    let read_ahead = |image: &str| {
        succeeded(&bench.weald(&["mount", image, "mnt"]));
        let reported = bench.sh("cat /sys/class/bdi/$(mountpoint -d mnt)/read_ahead_kb");
        succeeded(&bench.weald(&["umount", "mnt"]));
        text(&reported)
    };
    assert_eq!(read_ahead("image"), "4096\n");
    assert_eq!(read_ahead("text.weald"), "256\n");
}

/// Would catch: a digest that is not that of the file, of one with holes or of an empty one; an
/// answer for a directory; a request for gigabytes of data that occupies the server.
#[test]
fn files_have_their_fsverity_digest() {
    let bench = Bench::new();
    succeeded(&bench.sh(
        "cd source; touch empty; seq 300000 > text; truncate -s 5G hole; echo x >> hole
         head -c 1M /dev/zero | tr '\\0' y > y; for i in $(seq 257); do cat y; done > much; rm y
         cd ..; $WEALD build -q --fsverity source verity.weald; $WEALD mount verity.weald mnt
         $WEALD sum --fsverity verity.weald > sums",
    ));
    let sums = fs::read_to_string(bench.at("sums")).expect("sums");
    let measure = |name: &str| {
        let file = File::open(bench.at("mnt").join(name)).expect("open");
        weald_sys::measure_verity(file)
    };
    let mut equal_count = 0;
    for line in sums.lines().filter(|line| !line.ends_with(" much")) {
        let (digest, name) = line.split_once(' ').expect("two words");
        let found = measure(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, format!("sha256:{found}"), "{name}");
        equal_count += 1;
    }
    assert_eq!(equal_count, 5);
    let error = measure("much").expect_err("too much for one request");
    assert_eq!(error.raw_os_error(), Some(61), "ENODATA");
    assert!(weald_sys::is_without_verity(
        &measure("dir").expect_err("a directory")
    ));
}

#[test]
fn an_image_can_lie_inside_a_file() {
    let bench = Bench::new();
    succeeded(&bench.sh("(head -c 12288 /dev/zero; cat image) > inside"));
    succeeded(&bench.weald(&["mount", "-o", "offset=12K", "inside", "mnt"]));
    assert!(bench.is_mounted());
}

// Would catch an `offset=auto` that finds no image.
#[test]
fn an_image_behind_a_script_mounts_itself() {
    let bench = Bench::new();
    succeeded(&bench.sh(
        r#"printf '#!/bin/sh\nexec "$WEALD" mount -o offset=auto "$0" "$1"\n' > program
        cat image >> program; chmod +x program"#,
    ));
    succeeded(&bench.sh("./program mnt"));
    assert!(bench.is_mounted());
    refused(
        &bench.weald(&["mount", "-o", "offset=auto", "/etc/passwd", "mnt"]),
        "no footer at the end",
    );
}

#[test]
fn umount_says_why_it_cannot() {
    let bench = Bench::new();
    refused(
        &bench.weald(&["umount", "mnt"]),
        "mnt: no image is mounted there",
    );
    refused(
        &bench.weald(&["umount", "/proc"]),
        "/proc: no image is mounted there",
    );
    refused(&bench.weald(&["umount", "missing"]), "missing");
    bench.mount("");
    refused(&bench.weald(&["umount", "mnt/dir"]), "mnt/dir: ");
    let file = File::open(bench.at("mnt/hello")).expect("open");
    refused(&bench.weald(&["umount", "mnt"]), "mnt: it is in use");
    succeeded(&bench.weald(&["umount", "--lazy", "mnt"]));
    assert!(!bench.is_mounted());
    drop(file);
    eventually("the end of the server", || !bench.is_served());
}

#[test]
fn a_mount_whose_server_was_killed_can_be_unmounted() {
    let bench = Bench::new();
    bench.mount("");
    succeeded(&bench.sh(&format!("kill -KILL {}", bench.server())));
    eventually("the end of the server", || !bench.is_served());
    assert!(fs::metadata(bench.at("mnt")).is_err());
    succeeded(&bench.weald(&["umount", "mnt"]));
    assert!(fs::metadata(bench.at("mnt")).is_ok());
}

#[test]
fn damage_is_eio_and_one_line_in_the_log() {
    let bench = Bench::new();
    let mut image = fs::read(bench.at("image")).expect("read");
    let noise = fs::read(bench.at("source/dir/noise")).expect("read");
    let at = image
        .windows(64)
        .position(|bytes| bytes == &noise[100_000..100_064])
        .expect("stored raw");
    image[at] ^= 1;
    fs::write(bench.at("image"), image).expect("write");
    succeeded(&bench.weald(&["mount", "image", "mnt", "--log", "log"]));
    for _ in 0..3 {
        let error = fs::read(bench.at("mnt/dir/noise")).expect_err("damaged");
        assert_eq!(error.raw_os_error(), Some(5));
    }
    assert_eq!(
        fs::read_dir(bench.at("mnt/dir"))
            .expect("the rest goes on")
            .count(),
        1
    );
    let log = fs::read_to_string(bench.at("log")).expect("log");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("digest") && log.contains("byte"), "{log}");
}

/// Runs a script in a mount namespace where `mount -t weald` finds its helper.
fn with_helper(bench: &Bench, script: &str) -> Output {
    bench.sh(&format!(
        r#"mkdir -p sbin work; ln -sf "$WEALD" sbin/mount.weald
        exec unshare -m bash -euc 'options=lowerdir=/usr/sbin,upperdir=sbin,workdir=work
        mount -t overlay over -o $options /usr/sbin
        {script}'"#
    ))
}

#[test]
fn mount_and_fstab_support_the_type() {
    let bench = Bench::new();
    let output = with_helper(
        &bench,
        "mount -t weald image mnt -o noexec,user_xattr_is_unknown 2>&1 | head -1
        mount -t weald image mnt -o noexec,nofail
        cat mnt/hello; findmnt -no FSTYPE mnt; umount mnt
        echo \"$PWD/image $PWD/mnt weald ro,nodev,x-test 0 0\" > fstab
        mount -a -T fstab; cat mnt/hello; umount mnt",
    );
    let expected = "mount.weald: option 'user_xattr_is_unknown': there is no such option ('weald \
     mount --help' lists them)\n\
                    Hello, Weald\nfuse.weald\nHello, Weald\n";
    assert_eq!(text(&output), expected);
    eventually("the end of the servers", || !bench.is_served());
}

#[test]
fn ordinary_users_mount_with_fusermount3() {
    let bench = Bench::new();
    // Makes the device accessible to all users, as udev does, in a separate namespace.
    let output = bench.sh(
        r#"chown nobody mnt; chmod 644 image; exec unshare -m bash -euc '
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        install -d -o nobody -m 700 nobody; export WEALD_RUNTIME_DIR=$PWD/nobody
        user() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
        install -m 755 "$WEALD" program
        user ./program mount image mnt
        user cat mnt/hello; findmnt -no OPTIONS mnt | tr , "\n" | grep -x -e ro -e nosuid -e nodev
        cat mnt/hello 2>&1 | grep -o denied || true
        user ./program umount mnt
        user ./program umount mnt || echo $?'"#,
    );
    let reported = text(&output);
    assert!(
        reported.starts_with("Hello, Weald\nro\nnosuid\nnodev\n"),
        "{reported}"
    );
    assert!(
        reported.ends_with("mnt: no image is mounted there, and no volume\n"),
        "{reported}"
    );
    assert!(reported.contains("\n2\n"), "{reported}");
    eventually("the end of the server", || !bench.is_served());
}

/// Would catch: `fusermount3` that follows a path which has changed since the client opened the
/// mount point.
#[test]
fn fusermount3_mounts_on_the_directory_that_the_client_opened() {
    let bench = Bench::new();
    let output = bench.sh(
        r#"mkdir first; chown nobody mnt first; chmod 644 image; exec unshare -m bash -euc '
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        install -d -o nobody -m 700 nobody; export WEALD_RUNTIME_DIR=$PWD/nobody
        user="setpriv --reuid nobody --regid nogroup --clear-groups"
        install -m 755 "$WEALD" program
        $user ./program mount image first
        server=$($user ./program mounts --json | grep -o "\"pid\":[0-9]*" | head -1 | cut -d: -f2)
        kill -STOP "$server"
        $user ./program mount image mnt & client=$!
        for _ in {1..20000}; do
            [[ $(readlink /proc/$client/fd/* 2>&1) != *socket:* ]] || break
        done
        mv mnt moved; install -d -o nobody mnt
        kill -CONT "$server"; wait $client
        $user cat moved/hello; ls mnt
        $user ./program umount moved; $user ./program umount first'"#,
    );
    assert_eq!(text(&output), "Hello, Weald\n");
    eventually("the end of the server", || !bench.is_served());
}
