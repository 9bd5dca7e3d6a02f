//! Runs every example of every help text in a shell.
use crate::support::{Bench, COMMANDS, run, weald_path};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use weald_testkit::mounts::mount_lines;
use weald_testkit::servers::S3Server;

/// Paths that examples use, each with its substitute below the test's directory.
const PLACES: [(&str, &str); 6] = [
    ("/srv/store", "srv/store"),
    ("/mnt", "mnt"),
    ("root.weald /srv/root", "forest.weald mnt"),
    ("/backup/", "backup/"),
    ("/usr/share/bash-completion/completions/", "share/"),
    ("/var/lib/node_exporter/", "share/"),
];

/// Creates all files that examples read.
pub const PREPARE: &str = "
    mkdir -p mnt backup share .zfunc .config/fish/completions
    mkdir -p project/target forest/{etc,usr/{bin,include,lib/a/b,share/doc/tool}} versions v2
    echo 'int main() {}' > project/main.c; echo object > project/main.o; echo x > project/target/x
    printf 'root:x:0:0::/root:/bin/sh\\n' > forest/etc/passwd; echo root:x:0: > forest/etc/group
    echo conf > forest/etc/tool.conf; echo tool > forest/usr/bin/tool
    echo lib > forest/usr/lib/libtool.so
    echo '#define A 1' > forest/usr/include/a.h; echo readme > forest/usr/share/doc/tool/README
    head -c 2000000 /dev/urandom > forest/usr/lib/a/b/libtool.so.1
    seq 1000 > versions/numbers; seq 1000 > v2/numbers; seq 2000 > v2/more
    weald build -q forest forest.weald; mkfs.erofs --quiet root.erofs forest
    weald build -q versions versions.weald; weald build -q versions v1.weald
    mkdir srv
    cp v1.weald untrusted.weald; cp v1.weald monday.weald; cp v1.weald damaged.weald
    weald build -q v2 tuesday.weald
    cp v1.weald backup/; cp forest.weald backup/; cp v1.weald forest-2.weald
    weald export oci -q forest.weald layout:v1; echo '{}' > config.json
    tar -cf saved.tar -C layout .; (cd v2; zip -qr ../release.zip .)
    echo usr/bin > paths.txt; seq 3000 > versions/numbers";

/// The store before the examples of a command of it.
const STORE_EMPTY: &str = "weald store create -q srv/store";
const STORE_FULL: &str = "weald store create -q srv/store
    weald store import -q srv/store v1.weald forest.weald monday.weald tuesday.weald";

/// File with variables of the shell, if the examples of a command need any.
const ENVIRONMENT: &str = "environment";

/// Starts the server that has the bucket of the examples of a command.
fn start_bucket(bench: &Bench) -> S3Server {
    let server = S3Server::start(&bench.at("s3"));
    let lines = server.environment();
    let lines = lines.map(|(name, value)| format!("export {name}='{value}'\n"));
    fs::write(bench.at(ENVIRONMENT), lines.concat()).expect("write");
    server
}

/// Two disks for tiers.
const TIER_DISKS: &str = "mkdir mnt/hdd mnt/hdd2
    mount -t tmpfs none mnt/hdd; mount -t tmpfs none mnt/hdd2";

/// A replica of it, for the examples of most commands.
const REPLICA: &str = "weald replica add -q srv/store backup --name disk2
    weald replica add -q srv/store near --name near; weald replica send -q srv/store";

/// Inputs of `weald import`.
const COMPOSEFS: &str = "weald export composefs -q forest.weald --image root.cfs --objects objects
    weald export dump forest.weald > root.dump";

/// The command lines under EXAMPLES.
fn examples(help: &str) -> Vec<String> {
    let section = help.split("\nEXAMPLES\n").nth(1).expect("EXAMPLES");
    let section = section.split("\nEXIT STATUS\n").next().expect("a section");
    let lines = section
        .lines()
        .filter_map(|line| line.strip_prefix("      "));
    lines.map(str::to_owned).collect()
}

pub fn shell(bench: &Bench, line: &str) -> crate::support::Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let dir = bench.0.path();
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", line])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", dir.join("bin").display()))
        .env("HOME", dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env("WEALD_RUNTIME_DIR", dir.join("run"))
        .env("BASH_ENV", dir.join(ENVIRONMENT))
        .env("LC_ALL", "C");
    run(&mut command)
}

#[track_caller]
pub fn must(bench: &Bench, line: &str) -> String {
    let output = shell(bench, line);
    assert_eq!(output.code, Some(0), "{line}: {}", output.stderr);
    output.text()
}

fn is_mounted(dir: &Path) -> bool {
    let word = format!(" {} ", dir.display());
    mount_lines("/proc/self/mounts")
        .iter()
        .any(|line| line.contains(&word))
}

/// Ends the servers of `bench` and waits for their end.
fn end_servers(bench: &Bench) {
    let servers = must(bench, "weald mounts --json");
    for line in servers.lines() {
        let server: serde_json::Value = serde_json::from_str(line).expect("JSON");
        if server["type"] == "server" {
            must(
                bench,
                &format!("kill {0}; tail --pid={0} -f /dev/null", server["pid"]),
            );
        }
    }
}

/// A copy of what [`PREPARE`] has made.
pub fn copy_of(prepared: &Bench) -> Bench {
    let bench = Bench::new();
    must(
        &bench,
        &format!("cp -a {}/. .", prepared.0.path().display()),
    );
    bench
}

/// Makes what the examples of `command` need, and returns the server of their bucket.
pub fn set_up(bench: &Bench, command: &str) -> Option<S3Server> {
    if ["store", "export", "import", "replica", "tier", "scrub"]
        .iter()
        .any(|group| command.starts_with(group))
    {
        let store = match command {
            "store" => "true",
            "store import" => STORE_EMPTY,
            _ => STORE_FULL,
        };
        must(bench, store);
    }
    if command.starts_with("import") {
        must(bench, COMPOSEFS);
    }
    // The examples of the group make the replica that they use.
    if command.starts_with("replica ") || command == "store scrub" {
        let named = match command {
            "replica add" | "replica receive" => "true".to_owned(),
            "replica promote" => {
                format!("{REPLICA}; weald replica follow -q backup standby")
            }
            _ => REPLICA.to_owned(),
        };
        must(bench, &named);
    }
    if ["publish", "commit"].contains(&command) {
        must(bench, STORE_FULL);
    }
    if command == "commit" {
        must(bench, "mkdir upper; echo new > upper/new");
    }
    let needs_bucket = ["publish", "store probe", "tier add"].contains(&command);
    let bucket = needs_bucket.then(|| start_bucket(bench));
    if command.starts_with("tier") {
        must(bench, TIER_DISKS);
        if ["tier move", "tier heat"].contains(&command) {
            must(bench, "weald volume create -q srv/store:home");
        }
        if !["tier", "tier add"].contains(&command) {
            must(
                bench,
                "weald tier add -q srv/store mnt/hdd/tier --name slow",
            );
        }
    }
    if command == "scrub pause" {
        // A scrub that a kill has cut off.
        let cut = "timeout -s KILL 1 weald scrub start --rate 1 srv/store || test $? = 137";
        must(bench, cut);
    }
    if command == "scrub run-due" {
        must(bench, "weald scrub set srv/store --every 30d");
    }
    if ["scrub resume", "scrub status"].contains(&command) {
        must(bench, "weald scrub start -q srv/store");
    }
    if command == "mount" || command.starts_with("volume") {
        must(bench, "weald store create -q srv/store");
    }
    if command == "mount" {
        must(
            bench,
            "weald store import -q srv/store v1.weald --name latest",
        );
    }
    if command == "mount" || (command.starts_with("volume ") && command != "volume create") {
        must(bench, "weald volume create -q srv/store:home");
    }
    if command.starts_with("snapshot") {
        must(
            bench,
            "weald store create -q srv/store; weald volume create -q srv/store:home",
        );
        if !["snapshot", "snapshot create"].contains(&command) {
            must(bench, "weald snapshot create -q srv/store:home@before");
        }
        if command == "snapshot ls" {
            must(bench, "weald snapshot create -q srv/store:home@monday");
        }
        if command == "snapshot release" {
            must(bench, "weald snapshot hold audit srv/store:home@before");
        }
    }
    if ["parity verify", "parity repair"].contains(&command) {
        let add = "weald parity add -q forest.weald; cp forest.weald.parity backup/";
        must(bench, add);
    }
    if ["umount", "mounts"].contains(&command) {
        must(bench, "weald mount forest.weald mnt");
    }
    bucket
}

/// Takes away what [`set_up`] and the examples have mounted and started.
pub fn tear_down(bench: &Bench, command: &str) {
    if command == "mounts" {
        must(bench, "weald umount mnt");
    }
    if command.starts_with("tier") {
        must(bench, "umount mnt/hdd mnt/hdd2");
    }
    end_servers(bench);
}

/// The examples in the help of `command`, with places below the directory of `bench`.
pub fn examples_of(bench: &Bench, command: &str) -> Vec<(String, String)> {
    let words = command.split_whitespace().chain(["--help"]);
    let help = bench.weald(words).expect(0, "").text();
    let examples = examples(&help);
    assert!(!examples.is_empty(), "{command}: no examples");
    let with_places = |example: String| {
        let mut line = example.clone();
        for (place, there) in PLACES {
            line = line.replace(place, &format!("{}/{there}", bench.0.path().display()));
        }
        (example, line)
    };
    examples.into_iter().map(with_places).collect()
}

/// A directory with what the examples of all commands read.
pub fn prepared() -> Bench {
    let prepared = Bench::new();
    fs::create_dir(prepared.at("bin")).expect("mkdir");
    symlink(weald_path(), prepared.at("bin/weald")).expect("link");
    must(&prepared, PREPARE);
    prepared
}

/// Would catch: an example that does not work because an option was removed, a file is missing or a
/// program is not installed.
#[test]
fn every_example_works() {
    let prepared = prepared();
    for command in [""].into_iter().chain(COMMANDS) {
        let bench = copy_of(&prepared);
        let _bucket = set_up(&bench, command);
        for (example, line) in examples_of(&bench, command) {
            let output = shell(&bench, &line);
            // The two sides of most comparisons differ, so that status 1 is right.
            let is_done = output.code == Some(0)
                || (output.code == Some(1) && line.starts_with("weald diff"));
            assert!(is_done, "{example}: {:?} {}", output.code, output.stderr);
            assert!(example.len() <= 88, "{example}: wraps on a terminal");
            if line.starts_with("weald mount ") {
                assert!(is_mounted(&bench.at("mnt")), "{example}");
                if command != "commit" {
                    must(&bench, "weald umount mnt");
                }
            }
        }
        assert_eq!(
            is_mounted(&bench.at("mnt")),
            command == "mounts",
            "{command}"
        );
        tear_down(&bench, command);
    }
}

/// Would catch: a command whose help lacks a section that other commands have, and text that is
/// wrapped twice.
#[test]
fn every_help_has_the_same_sections() {
    let bench = Bench::new();
    for command in COMMANDS {
        let words = |option| command.split(' ').chain([option]);
        let help = bench.weald(words("--help")).expect(0, "").text();
        let short = bench.weald(words("-h")).expect(0, "").text();
        let place = |text: &str, heading: &str| {
            let at = text.find(heading);
            at.unwrap_or_else(|| panic!("{command}: no {heading:?}: {text}"))
        };
        let usage = place(&help, "Usage: weald ");
        let (examples, status) = (
            place(&help, "\nEXAMPLES\n"),
            place(&help, "\nEXIT STATUS\n"),
        );
        assert!(usage < examples && examples < status, "{command}");
        place(&help[status..], "\n  0  ");
        place(&help[status..], "\n  2  ");
        place(&short, "\nEXAMPLES\n");
        assert!(
            help.lines().all(|line| line.chars().count() <= 100),
            "{command}: {help}"
        );
        // A line that was wrapped twice is short although its sentence continues on the next line.
        let lines: Vec<&str> = help.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[0].starts_with("  ")) {
            let indent = |line: &str| line.len() - line.trim_start().len();
            let begins_low = pair[1].trim_start().starts_with(char::is_lowercase);
            let is_same = indent(pair[0]) == indent(pair[1]) && begins_low;
            let first = pair[1]
                .split_whitespace()
                .next()
                .map_or(0, |word| word.chars().count());
            let len = pair[0].chars().count();
            // A list of commands has a column of names.
            let is_list = pair[0].trim_start().contains("  ");
            let is_code = is_list || pair[0].trim_start().starts_with('-') || indent(pair[0]) == 6;
            assert!(
                !is_same || is_code || len + 1 + first > 100,
                "{command}: {pair:?}"
            );
        }
    }
    let options = |args: [&str; 2]| {
        let help = bench.weald(args).expect(0, "").text();
        let is_option = |line: &&str| line.trim_start().starts_with('-');
        help.lines().filter(is_option).count()
    };
    // Ten options, and -v and -h.
    assert_eq!(options(["build", "-h"]), 12);
    assert!(options(["build", "--help"]) > 40);
    let help = bench.weald(["build", "--help"]).expect(0, "").text();
    let groups = [
        "Input",
        "Selection",
        "Compression",
        "Layout",
        "Attributes",
        "Output",
        "Resources",
    ];
    let places = groups.map(|group| help.find(&format!("\n{group}:\n")).expect(group));
    assert!(places.is_sorted(), "{places:?}");
}
