//! Mounts that are exported over a network: NFS-Ganesha finds files by handle, Samba by path.

use crate::ground::{Ground, noise};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
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

/// Would catch: a mount that Samba cannot list or read, or that it cannot use after the server has
/// died and the image is mounted again.
#[test]
fn samba_continues_after_the_image_is_mounted_again() {
    let ground = exported();
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
    let config = format!(
        "[global]\n{}ncalrpc dir = {}/ncalrpc\nlog file = {}/log\ninterfaces = lo\nbind \
         interfaces only = yes\n\
         map to guest = Bad User\nguest account = root\nload printers = no\ndisable spoolss = yes\n\
         [weald]\npath = {}\nguest ok = yes\nread only = yes\n",
        own.concat(),
        state.display(),
        state.display(),
        ground.at("m").display()
    );
    let config_path = ground.at("smb.conf");
    fs::write(&config_path, config).expect("configuration");
    let mut command = Command::new("smbd");
    command.args(["--foreground", "--no-process-group", "-p", &port, "-s"]);
    let mut smbd = Server::start(command.arg(&config_path));
    let said = |words: &str| {
        let mut client = Command::new("smbclient");
        client.args(["//127.0.0.1/weald", "-N", "-p", &port, "-s"]);
        client
            .arg(&config_path)
            .args(["-c", words])
            .output()
            .expect("smbclient")
    };
    eventually("Samba", || {
        assert!(smbd.is_running(), "{}", smbd.log());
        said("ls").status.success()
    });
    let got = ground.at("got");
    let compare = || {
        let _ = fs::remove_file(&got);
        let done = said(&format!("get noise {}", got.display()));
        assert!(done.status.success(), "{}", text(&done));
        assert!(fs::read(&got).expect("got") == noise("a"), "other bytes");
    };
    compare();
    serve_anew(&ground);
    compare();
    smbd.kill();
    umount(&ground);
}
