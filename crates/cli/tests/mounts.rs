//! Many mounts of one server: how it begins and ends, what it tells, how another takes its mounts over. Runs as root, needs
//! `/dev/fuse`. Orphans become children of this process, which never waits for them, as under a careless init.
#![allow(missing_docs)]

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use tempfile::TempDir;
use weald_build::{BuildOptions, Silent, build_image};
use weald_testkit::mounts::{PATIENCE, eventually};

const WEALD: &str = env!("CARGO_BIN_EXE_weald");

/// A directory with images, mount points and servers; unmounts when dropped, whereupon its servers end.
struct Ground {
    base: TempDir,
    run: PathBuf,
}

impl Ground {
    fn new() -> Self {
        set_child_subreaper(Some(getpid())).expect("subreaper");
        let base = tempfile::Builder::new()
            .prefix("wm")
            .tempdir()
            .expect("temporary directory");
        let run = base.path().join("run");
        Self { base, run }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// An image called `name` of `NAME.source`, whose `noise` and `text` no other image has.
    fn build(&self, name: &str) {
        let source = self.at(&format!("{name}.source"));
        fs::create_dir_all(&source).expect("mkdir");
        fs::write(source.join("noise"), noise(name)).expect("write");
        fs::write(source.join("text"), format!("{name}\n").repeat(5000)).expect("write");
        let options = BuildOptions::level(1).expect("level");
        build_image(&source, &self.at(name), false, &options, &Silent).expect("build");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(WEALD);
        command
            .args(args)
            .current_dir(self.base.path())
            .stdin(Stdio::null());
        command
            .env("WEALD_RUNTIME_DIR", &self.run)
            .env("LC_ALL", "C");
        command
    }

    fn weald(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("weald")
    }

    /// Mounts the image `name` on the directory `dir`, which is made.
    #[track_caller]
    fn mount(&self, name: &str, dir: &str, args: &[&str]) {
        fs::create_dir_all(self.at(dir)).expect("mkdir");
        succeeded(&self.weald(&[&["mount"], args, &[name, dir]].concat()));
        self.compare(name, dir);
    }

    #[track_caller]
    fn umount(&self, dir: &str) {
        succeeded(&self.weald(&["umount", dir]));
    }

    /// Compares what is mounted on `dir` with what the image `name` was made of.
    #[track_caller]
    fn compare(&self, name: &str, dir: &str) {
        assert_eq!(
            fs::read(self.at(dir).join("noise")).expect("read"),
            noise(name)
        );
        let text = fs::read_to_string(self.at(dir).join("text")).expect("read");
        assert_eq!(text, format!("{name}\n").repeat(5000));
    }

    /// Objects of `weald mounts --json` of one type.
    #[track_caller]
    fn told(&self, kind: &str) -> Vec<Value> {
        let output = self.weald(&["mounts", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        let objects = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        objects.filter(|object| object["type"] == kind).collect()
    }

    /// The shared server; there must be one server only.
    #[track_caller]
    fn server(&self) -> Pid {
        let servers = self.told("server");
        assert_eq!(
            (servers.len(), &servers[0]["is_shared"]),
            (1, &Value::Bool(true))
        );
        let pid = servers[0]["pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).expect("a process id")
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.run).into_iter().flatten();
        let paths = entries.map(|entry| entry.expect("entry").path());
        paths
            .filter(|path| path.extension().is_some_and(|e| e != "lock"))
            .collect()
    }

    /// A connection to the shared server.
    fn connect(&self) -> UnixStream {
        let sockets = self.sockets();
        let shared = sockets
            .iter()
            .find(|path| path.extension().is_some_and(|e| e == "shared"));
        let stream = UnixStream::connect(shared.expect("a socket")).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// Waits until no server answers.
    fn until_unserved(&self) {
        eventually("the end of the servers", || {
            !self
                .sockets()
                .iter()
                .any(|socket| UnixStream::connect(socket).is_ok())
        });
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let entries = fs::read_dir(self.base.path())
            .into_iter()
            .flatten()
            .flatten();
        for entry in entries {
            // A new one may lie on one whose server was killed.
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            while unmount(entry.path(), flags).is_ok() {}
        }
        // One that was told to stay without mounts.
        if std::thread::panicking()
            && let Ok(output) = self.command(&["mounts", "--json"]).output()
        {
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            let servers = lines
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            for pid in servers
                .filter(|s| s["type"] == "server")
                .filter_map(|s| s["pid"].as_i64())
            {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
            }
        }
    }
}

/// A child that is killed and waited for when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Half a megabyte that compresses to nothing less.
fn noise(name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 500_000];
    blake3::Hasher::new()
        .update(name.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn text(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    out + &err
}

#[track_caller]
fn succeeded(output: &Output) {
    assert_eq!((output.status.code(), text(output).as_str()), (Some(0), ""));
}

#[track_caller]
fn refused(output: &Output, reason: &str) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.starts_with("weald: ") && text.contains(reason),
        "{reason}: {text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Says one frame of the protocol.
fn say(mut stream: &UnixStream, message: &str) {
    let len = u32::try_from(message.len()).expect("short");
    let frame = [&len.to_le_bytes(), message.as_bytes()].concat();
    stream.write_all(&frame).expect("said");
}

/// Hears one frame; a descriptor that comes with it is closed.
fn hear(mut stream: &UnixStream) -> Value {
    let mut len = [0; 4];
    stream.read_exact(&mut len).expect("length");
    let mut body = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut body).expect("body");
    serde_json::from_slice(&body).expect("JSON")
}

#[test]
fn mounts_share_a_server_that_ends_with_the_last() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    ground.mount("a", "m1", &[]);
    let server = ground.server();
    ground.mount("b", "m2", &[]);
    ground.mount("a", "m3", &["-o", "cachesize=9M"]);
    assert_eq!(ground.server(), server);
    ground.mount("b", "m4", &["--isolated"]);
    let servers = ground.told("server");
    assert_eq!(servers.len(), 2, "{servers:?}");
    let mounts = ground.told("mount");
    let dirs: Vec<_> = mounts
        .iter()
        .map(|mount| Path::new(mount["dir"].as_str().expect("text")))
        .collect();
    assert_eq!(dirs, ["m1", "m2", "m3", "m4"].map(|name| ground.at(name)));
    assert_eq!(mounts[0]["image_digest"], mounts[2]["image_digest"]);
    assert_ne!(mounts[0]["server_pid"], mounts[3]["server_pid"]);
    assert_eq!(mounts[2]["cache"]["len_max"], 9 << 20, "a cache of its own");
    assert_eq!(
        mounts[0]["cache"]["len_max"],
        servers[0]["cache"]["len_max"]
    );
    ["m1", "m3", "m4"].iter().for_each(|dir| ground.umount(dir));
    assert_eq!(ground.server(), server);
    ground.compare("b", "m2");
    ground.umount("m2");
    ground.until_unserved();
    ground.mount("a", "m1", &[]);
    assert_ne!(ground.server(), server);
    ground.umount("m1");
    ground.until_unserved();
}

/// Would catch: a starter that hangs because the server keeps its pipes, a client that waits for a process by its number.
#[test]
fn a_server_holds_nothing_of_its_starter() {
    let ground = Ground::new();
    ground.build("a");
    fs::create_dir(ground.at("m1")).expect("mkdir");
    let mut shell = Command::new("bash");
    shell
        .args(["-c", "exec 7>&1 8>&2; \"$0\" mount a m1", WEALD])
        .current_dir(ground.base.path());
    // Its output ends when nobody holds the pipe any more, also under other numbers.
    succeeded(
        &shell
            .env("WEALD_RUNTIME_DIR", &ground.run)
            .output()
            .expect("bash"),
    );
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn a_killed_server_leaves_mounts_that_umount_clears_and_a_socket_that_is_replaced() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &[]);
    kill_process(ground.server(), Signal::KILL).expect("kill");
    ground.until_unserved();
    for dir in ["m1", "m2"] {
        let error = fs::metadata(ground.at(dir).join("new")).expect_err("nobody serves it");
        assert!(matches!(error.raw_os_error(), Some(103 | 107)), "{error}");
    }
    assert_eq!(ground.sockets().len(), 1, "left behind");
    succeeded(&ground.weald(&["mounts"]));
    ground.umount("m1");
    ground.mount("a", "m1", &[]);
    ground.umount("m2");
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn many_clients_at_once_end_with_one_server() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    let dirs: Vec<String> = (0..20).map(|i| format!("m{i}")).collect();
    let start = |dir: &String| {
        fs::create_dir(ground.at(dir)).expect("mkdir");
        let name = if dir.len() > 2 { "a" } else { "b" };
        let mut command = ground.command(&["mount", name, dir]);
        Guard(command.spawn().expect("weald"))
    };
    let clients: Vec<Guard> = dirs.iter().map(start).collect();
    for mut client in clients {
        assert_eq!(client.0.wait().expect("wait").code(), Some(0));
    }
    ground.server();
    assert_eq!(ground.told("mount").len(), dirs.len());
    for dir in &dirs {
        ground.compare(if dir.len() > 2 { "a" } else { "b" }, dir);
        ground.umount(dir);
    }
    ground.until_unserved();
}

#[test]
fn what_is_refused_leaves_the_others_alone() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    fs::create_dir(ground.at("m2")).expect("mkdir");
    fs::write(ground.at("text"), "garbage ".repeat(5000)).expect("write");
    let digest = "0".repeat(64);
    let table: [(&[&str], &str); 8] = [
        (&["missing", "m2"], "missing: No such file"),
        (&["a", "missing"], "missing: No such file"),
        (&["text", "m2"], "text: not a Weald image"),
        (&["a", "text"], "not a directory"),
        (&["a", "m2", "-o", "fast"], "option 'fast'"),
        (&["a", "m2", "-o", &format!("digest={digest}")], &digest),
        (
            &["a", "m2", "--prefetch", "missing"],
            "missing: No such file",
        ),
        (
            &["a", "m2", "--record", "missing/hot"],
            "missing: No such file",
        ),
    ];
    for (args, reason) in table {
        refused(&ground.weald(&[&["mount"], args].concat()), reason);
    }
    ground.server();
    assert_eq!(ground.told("mount").len(), 1);
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn what_was_recorded_can_be_fetched_ahead() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &["--record", "hot", "--log", "log"]);
    ground.umount("m1");
    let hot = fs::read_to_string(ground.at("hot")).expect("written when umount returns");
    assert!(
        hot.starts_with("weald hotness 1\n") && hot.contains("noise"),
        "{hot}"
    );
    ground.mount("a", "m1", &["--prefetch", "hot"]);
    ground.mount("a", "m2", &["--prefetch", "all", "--isolated"]);
    ground.umount("m1");
    ground.umount("m2");
    refused(
        &ground.weald(&["mount", "a", "m1", "--prefetch", "log"]),
        "log",
    );
    ground.mount("a", "m1", &["--trace", "trace"]);
    ground.umount("m1");
    let trace = fs::read(ground.at("trace")).expect("written");
    serde_json::from_slice::<Value>(&trace).expect("a trace is JSON when umount returns");
    assert_eq!(fs::read_to_string(ground.at("log")).expect("log"), "");
}

#[test]
fn servers_tell_what_they_do() {
    let ground = Ground::new();
    ground.build("a");
    succeeded(&ground.weald(&["mounts"]));
    ground.mount("a", "m\"1", &[]);
    let mount = ground.told("mount").remove(0);
    for key in ["request_count", "read_len", "started", "generation"] {
        assert!(mount[key].as_u64() > Some(0), "{key}: {mount}");
    }
    let server = ground.told("server").remove(0);
    for key in ["pid", "resident_len", "descriptor_count", "mount_count"] {
        assert!(server[key].as_u64() > Some(0), "{key}: {server}");
    }
    let table = text(&ground.weald(&["mounts", "--latency"]));
    assert!(
        table.contains("m\"1") && table.contains("P99") && table.contains("(shared, "),
        "{table}"
    );
    let exposed = text(&ground.weald(&["mounts", "--prometheus"]));
    let mut typed = BTreeSet::new();
    for line in exposed.lines() {
        match line
            .strip_prefix("# ")
            .map(|comment| comment.split(' ').collect::<Vec<_>>())
            .as_deref()
        {
            Some(["TYPE", name, _]) => assert!(typed.insert((*name).to_owned()), "{name} twice"),
            Some(["HELP", _, ..]) => {}
            Some(other) => panic!("{other:?}"),
            None => {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                let (name, labels) = sample.split_once('{').expect("labels");
                let ends = ["_bucket", "_sum", "_count", ""].map(|end| name.strip_suffix(end));
                assert!(
                    ends.iter().flatten().any(|name| typed.contains(*name)),
                    "{line}"
                );
                assert!(
                    labels.ends_with("\"}") && value.parse::<f64>().is_ok(),
                    "{line}"
                );
            }
        }
    }
    assert!(exposed.contains(r#"m\"1""#), "{exposed}");
    let mut command = ground.command(&["mounts", "--watch"]);
    let mut child = Guard(command.stdout(Stdio::piped()).spawn().expect("weald"));
    let lines = BufReader::new(child.0.stdout.take().expect("stdout")).lines();
    let heads = lines
        .map(|line| line.expect("a line"))
        .filter(|line| line.starts_with("server "));
    assert_eq!(heads.take(2).count(), 2, "it looks again");
    drop(child);
    ground.umount("m\"1");
}

/// Would catch: clients that hold up others, requests that break the server.
#[test]
fn slow_and_strange_clients_hold_nobody_up() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let mut slow = ground.connect();
    slow.write_all(&[200, 0]).expect("half a length");
    let other = ground.connect();
    say(&other, r#"{"protocol":99,"request":"Dance"}"#);
    let refusal = hear(&other).to_string();
    assert!(
        refusal.contains("protocol 1") && refusal.contains("take-over"),
        "{refusal}"
    );
    for garbage in ["", "{}", "[[[[", r#"{"protocol":1,"request":{"Mount":7}}"#] {
        let stream = ground.connect();
        say(&stream, garbage);
        // Refused, or hung up on.
        let _ = (&stream).read(&mut [0; 100]);
    }
    ground.mount("a", "m2", &[]);
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}

#[test]
fn a_place_for_servers_may_have_a_long_path_or_be_no_place() {
    let mut ground = Ground::new();
    ground.build("a");
    ground.run = ground.at(&"x".repeat(150)).join("y");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &["--isolated"]);
    assert_eq!(ground.told("mount").len(), 2);
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
    ground.run = ground.at("open");
    fs::create_dir(&ground.run).expect("mkdir");
    fs::set_permissions(&ground.run, PermissionsExt::from_mode(0o777)).expect("chmod");
    refused(&ground.weald(&["mounts"]), "mode 0777");
    let warned = ground.weald(&["mount", "a", "m1"]);
    assert_eq!(warned.status.code(), Some(0));
    assert!(
        text(&warned).contains("a server of its own"),
        "{}",
        text(&warned)
    );
    ground.compare("a", "m1");
    ground.umount("m1");
}

#[test]
fn few_descriptors_are_enough() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    let script =
        "ulimit -n 256; for i in 1 2 3 4 5 6 7 8; do mkdir m$i; \"$0\" mount a m$i || exit; done";
    let mut shell = Command::new("bash");
    shell
        .args(["-c", script, WEALD])
        .current_dir(ground.base.path());
    succeeded(
        &shell
            .env("WEALD_RUNTIME_DIR", &ground.run)
            .output()
            .expect("bash"),
    );
    let before = ground.told("server").remove(0)["descriptor_count"]
        .as_u64()
        .expect("a number");
    for i in 1..=8 {
        ground.compare("a", &format!("m{i}"));
    }
    (2..=8).for_each(|i| ground.umount(&format!("m{i}")));
    let after = ground.told("server").remove(0)["descriptor_count"]
        .as_u64()
        .expect("a number");
    assert!(after < before && before < 256, "{after} of {before}");
    ground.umount("m1");
}

#[test]
fn helpers_join_a_server_but_start_none_that_others_join() {
    let ground = Ground::new();
    ground.build("a");
    let help = |dir: &str| {
        fs::create_dir_all(ground.at(dir)).expect("mkdir");
        let mut command = ground.command(&["a", dir, "-o", "rw,nofail"]);
        succeeded(&command.arg0("mount.weald").output().expect("mount.weald"));
        ground.compare("a", dir);
    };
    help("m1");
    assert_eq!(ground.told("server")[0]["is_shared"], false);
    ground.umount("m1");
    ground.mount("a", "m1", &[]);
    help("m2");
    ground.server();
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}

#[test]
fn a_server_that_was_asked_for_stays_without_mounts() {
    let ground = Ground::new();
    ground.build("a");
    succeeded(&ground.weald(&["serve", "--background", "--cache", "64M"]));
    let server = ground.server();
    assert_eq!(ground.told("server")[0]["cache"]["len_max"], 64 << 20);
    refused(&ground.weald(&["serve"]), "a server runs already");
    ground.mount("a", "m1", &[]);
    ground.umount("m1");
    let systemd = UnixDatagram::bind(ground.at("notify")).expect("bind");
    systemd.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut command = ground.command(&["serve", "--background", "--take-over"]);
    command.env("NOTIFY_SOCKET", ground.at("notify"));
    succeeded(&command.output().expect("weald"));
    let mut told = [0; 100];
    let len = systemd.recv(&mut told).expect("a word for systemd");
    let pid = ground.server();
    assert_ne!(pid, server);
    let expected = format!("READY=1\nMAINPID={}\n", pid.as_raw_nonzero());
    assert_eq!(String::from_utf8_lossy(&told[..len]), expected);
    assert_eq!(ground.told("server")[0]["cache"]["len_max"], 64 << 20);
    ground.mount("a", "m1", &[]);
    kill_process(ground.server(), Signal::TERM).expect("kill");
    ground.until_unserved();
    assert!(!ground.at("m1/text").exists());
}

#[test]
fn umount_tries_a_mount_in_use_again() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    let file = File::open(ground.at("m1/text")).expect("open");
    refused(&ground.weald(&["umount", "m1"]), "m1: it is in use");
    let mut command = ground.command(&["umount", "m1"]);
    let mut child = Guard(command.spawn().expect("weald"));
    drop(file);
    assert_eq!(child.0.wait().expect("wait").code(), Some(0));
}

/// Reads a file again and again past the kernel's cache, until dropped.
struct Reader {
    is_done: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(path: PathBuf, expected: Vec<u8>) -> Self {
        let (is_done, count) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (done, counter) = (Arc::clone(&is_done), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            let kept = File::open(&path).expect("open");
            let mut found = vec![0; expected.len()];
            while !done.load(Ordering::Relaxed) {
                rustix::fs::fadvise(&kept, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
                kept.read_exact_at(&mut found, 0).expect("an open file");
                assert!(found == expected, "other bytes");
                assert_eq!(
                    fs::metadata(&path).expect("stat").len(),
                    expected.len() as u64
                );
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            is_done,
            count,
            thread: Some(thread),
        }
    }

    /// Waits until it has read once more from begin to end.
    fn go_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        eventually("a reader", || {
            let has_failed = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            assert!(!has_failed, "the reader has failed");
            self.count.load(Ordering::Relaxed) > before + 1
        });
    }

    fn finish(mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.expect("a thread").expect("no error, no difference");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}

#[test]
fn mounts_go_on_under_another_server() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    ground.mount("a", "m1", &["-o", "uid=77"]);
    ground.mount("b", "m2", &[]);
    let readers = [("a", "m1"), ("b", "m2")]
        .map(|(name, dir)| Reader::start(ground.at(dir).join("noise"), noise(name)));
    let mut server = ground.server();
    for _ in 0..3 {
        readers.iter().for_each(Reader::go_on);
        succeeded(&ground.weald(&["serve", "--take-over", "--background"]));
        let next = ground.server();
        assert_ne!(server, next);
        server = next;
        readers.iter().for_each(Reader::go_on);
    }
    readers.into_iter().for_each(Reader::finish);
    let told = ground.told("mount");
    assert_eq!(told.len(), 2);
    assert_eq!(told[0]["options"][0], "uid=77");
    ground.mount("b", "m3", &[]);
    assert_eq!(ground.server(), server);
    ["m1", "m2", "m3"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

/// Would catch: a mount that nobody serves because the taker has died half way.
#[test]
fn a_taker_that_gives_up_leaves_the_mounts_where_they_are() {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m1", &[]);
    ground.mount("a", "m2", &[]);
    let server = ground.server();
    for step in 0..3 {
        let taker = ground.connect();
        say(&taker, r#"{"protocol":1,"request":"TakeOver"}"#);
        assert_eq!(hear(&taker)["Server"]["mount_count"], 2);
        let mounts = [hear(&taker), hear(&taker)];
        assert!(
            mounts.iter().all(|mount| mount["Mount"].is_object()),
            "{mounts:?}"
        );
        if step > 0 {
            say(&taker, r#""Ready""#);
            assert!(hear(&taker)["Device"].is_object());
        }
        let reader = Reader::start(ground.at("m1/noise"), noise("a"));
        if step > 1 {
            assert!(hear(&taker)["Device"].is_object());
            say(&taker, r#""Ready""#);
            assert!(
                hear(&taker)["Refused"].is_object(),
                "that was no confirmation"
            );
        }
        drop(taker);
        reader.go_on();
        reader.finish();
        ground.compare("a", "m2");
        assert_eq!(ground.server(), server);
    }
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
    ground.until_unserved();
}

#[test]
fn what_cannot_be_taken_over_stays() {
    let ground = Ground::new();
    ["a", "b"].iter().for_each(|name| ground.build(name));
    let take_over = || ground.weald(&["serve", "--take-over", "--background"]);
    refused(&take_over(), "no server runs");
    ground.mount("a", "m1", &[]);
    let server = ground.server();
    fs::rename(ground.at("b"), ground.at("a")).expect("replaced");
    refused(&take_over(), "image digest");
    ground.build("b");
    ground.mount("b", "m2", &["--record", "hot"]);
    refused(&take_over(), "m2: records what is read");
    ground.compare("a", "m1");
    assert_eq!(ground.server(), server);
    ["m1", "m2"].iter().for_each(|dir| ground.umount(dir));
}
