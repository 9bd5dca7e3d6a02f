//! Mounts that are exported over a network: NFS-Ganesha finds files by handle, Samba by path.

use crate::ground::{Ground, noise};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use weald_testkit::command::{Output, succeeded, text};
use weald_testkit::mounts::{Server, eventually, finish};

/// A free port of this machine.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A ground with the image `a` mounted on `m`.
fn exported() -> Ground {
    let ground = Ground::new();
    ground.build("a");
    ground.mount("a", "m", &[]);
    ground
}

/// Unmounts `m` after the file server has closed it.
fn umount(ground: &Ground) {
    eventually("the end of its users", || {
        ground.weald(&["umount", "m"]).status.success()
    });
}

/// Kills the server of `m` and mounts the image again.
fn serve_anew(ground: &Ground) {
    kill_process(ground.server(), Signal::KILL).expect("kill");
    ground.until_unserved();
    umount(ground);
    ground.mount("a", "m", &[]);
}

/// An NFS server that exports `dir` as `/weald`.
struct Ganesha {
    server: Server,
    url: String,
}

impl Ganesha {
    fn start(ground: &Ground, dir: &Path) -> Self {
        let port = free_port();
        let [config, log, pid] =
            ["conf", "log", "pid"].map(|end| ground.at(&format!("ganesha.{end}")));
        let words = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; \
             Enable_UDP = false; \
             Enable_NLM = false; Enable_RQUOTA = false; }}
            NFSv4 {{ RecoveryBackend = fs; Graceless = true; }}
            NFS_KRB5 {{ Active_krb5 = false; }}
            EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /weald; Protocols = 4; Access_Type = RO; \
             Squash = None; \
             SecType = sys; Transports = TCP; FSAL {{ Name = VFS; }} }}\n",
            dir.display()
        );
        fs::write(&config, words).expect("configuration");
        let mut command = Command::new("ganesha.nfsd");
        command.arg("-F");
        for (option, path) in [("-f", &config), ("-L", &log), ("-p", &pid)] {
            command.arg(option).arg(path);
        }
        let mut started = Self {
            server: Server::start(&mut command),
            url: format!("nfs://127.0.0.1/weald/%?version=4&nfsport={port}"),
        };
        eventually("an NFS server", || {
            assert!(started.server.is_running(), "{}", started.server.log());
            started.run("nfs-ls", "").code == Some(0)
        });
        started
    }

    fn run(&self, program: &str, path: &str) -> Output {
        finish(Command::new(program).arg(self.url.replace('%', path)))
    }

    #[track_caller]
    fn compare(&self) {
        let found = self.run("nfs-cat", "noise");
        assert_eq!(found.code, Some(0), "{}", found.stderr);
        assert!(found.stdout == noise("a"), "other bytes");
        assert_eq!(
            self.run("nfs-cat", "text").stdout,
            "a\n".repeat(5000).into_bytes()
        );
        let listed = String::from_utf8(self.run("nfs-ls", "").stdout).expect("UTF-8");
        assert!(
            listed.contains(" noise") && listed.contains(" text"),
            "{listed}"
        );
    }
}

/// Would catch: handles that become stale or open another file, also after another process serves
/// the mount.
#[test]
fn nfs_handles_survive_hand_over_and_restart() {
    let ground = exported();
    let mut ganesha = Ganesha::start(&ground, &ground.at("m"));
    ganesha.compare();
    succeeded(&ground.weald(&["serve", "--take-over", "--background"]));
    ganesha.compare();
    ganesha.server.kill();
    serve_anew(&ground);
    let mut ganesha = Ganesha::start(&ground, &ground.at("m"));
    ganesha.compare();
    ganesha.server.kill();
    umount(&ground);
}

/// A Samba server that exports a directory as the share `weald`.
struct Samba {
    server: Server,
    port: String,
    config: PathBuf,
}

impl Samba {
    /// Exports `dir`; `words` are further lines of its share.
    fn start(ground: &Ground, dir: &Path, words: &str) -> Self {
        let port = free_port().to_string();
        let state = ground.at("samba");
        fs::create_dir(&state).expect("mkdir");
        let own = ["private", "lock", "state", "cache", "pid"].map(|kind| {
            let directory = match kind {
                "private" => "private dir".to_owned(),
                _ => format!("{kind} directory"),
            };
            format!("{directory} = {}\n", state.display())
        });
        let text = format!(
            "[global]\n{}ncalrpc dir = {}/ncalrpc\nlog file = {}/log\ninterfaces = lo\nbind \
             interfaces only = yes\n\
             map to guest = Bad User\nguest account = root\nload printers = no\n\
             disable spoolss = yes\n\
             [weald]\npath = {}\nguest ok = yes\nread only = yes\n{words}",
            own.concat(),
            state.display(),
            state.display(),
            dir.display()
        );
        let config = ground.at("smb.conf");
        fs::write(&config, text).expect("configuration");
        let mut command = Command::new("smbd");
        command.args(["--foreground", "--no-process-group", "-p", &port, "-s"]);
        let mut started = Self {
            server: Server::start(command.arg(&config)),
            port,
            config,
        };
        eventually("Samba", || {
            assert!(started.server.is_running(), "{}", started.server.log());
            started.said("ls").status.success()
        });
        started
    }

    /// What a client says to `words`.
    fn said(&self, words: &str) -> std::process::Output {
        let mut client = Command::new("smbclient");
        client.args(["//127.0.0.1/weald", "-N", "-p", &self.port, "-s"]);
        client.arg(&self.config).args(["-c", words]);
        client.output().expect("smbclient")
    }

    /// The bytes of a file.
    #[track_caller]
    fn get(&self, ground: &Ground, path: &str) -> Vec<u8> {
        let got = ground.at("got");
        let _ = fs::remove_file(&got);
        let done = self.said(&format!("get {path} {}", got.display()));
        assert!(done.status.success(), "{}", text(&done));
        fs::read(&got).expect("got")
    }
}

/// Would catch: a mount that Samba cannot list or read, or that it cannot use after the server has
/// died and the image is mounted again.
#[test]
fn samba_continues_after_the_image_is_mounted_again() {
    let ground = exported();
    let mut samba = Samba::start(&ground, &ground.at("m"), "");
    let compare = |samba: &Samba| {
        assert!(samba.get(&ground, "noise") == noise("a"), "other bytes");
    };
    compare(&samba);
    serve_anew(&ground);
    compare(&samba);
    samba.server.kill();
    umount(&ground);
}

/// The lines of `docs/snapshots.md` for a share of Samba.
fn lines_of_manual() -> String {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/snapshots.md");
    let manual = fs::read_to_string(manual).expect("the manual");
    let lines = manual.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("vfs objects") || line.starts_with("shadow:"));
    let lines: Vec<&str> = lines.collect();
    assert!(lines.len() >= 3, "{lines:?}");
    lines.join("\n") + "\n"
}

/// Would catch: snapshots that clients of Samba do not see as previous versions, or that clients of
/// NFS cannot enter, and a version with the bytes of another one.
#[test]
fn snapshots_are_read_over_smb_and_nfs() {
    let ground = Ground::new();
    for args in [
        &["store", "create", "-q", "store"][..],
        &["volume", "create", "-q", "store:v"],
    ] {
        succeeded(&ground.weald(args));
    }
    fs::create_dir_all(ground.at("m")).expect("mkdir");
    succeeded(&ground.weald(&["mount", "store:v", "m"]));
    let file = ground.at("m/noise");
    fs::write(&file, noise("old")).expect("write");
    let name = "auto-2024-02-29T12.00.00Z";
    succeeded(&ground.weald(&["snapshot", "create", "-q", &format!("store:v@{name}")]));
    fs::write(&file, noise("a")).expect("write");
    let mut samba = Samba::start(&ground, &ground.at("m"), &lines_of_manual());
    assert!(samba.get(&ground, "noise") == noise("a"), "the present");
    let versions = text(&samba.said("allinfo noise"));
    let version = "@GMT-2024.02.29-12.00.00";
    assert!(versions.contains(version), "{versions}");
    let old = samba.get(&ground, &format!("{version}\\noise"));
    assert!(old == noise("old"), "a previous version");
    samba.server.kill();
    let mut ganesha = Ganesha::start(&ground, &ground.at("m"));
    let old = ganesha.run("nfs-cat", &format!(".snapshots/{name}/noise"));
    assert_eq!(old.code, Some(0), "{}", old.stderr);
    assert!(old.stdout == noise("old"), "over NFS");
    let listed = text_of(&ganesha.run("nfs-ls", ""));
    assert!(!listed.contains("snapshots"), "{listed}");
    ganesha.server.kill();
    umount(&ground);
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
