//! `weald volume`: trees that can change, in a store.

mod change;
mod check;
mod seal;
mod set;
mod show;
mod stat;

use crate::help::Help;
use crate::open_store::{open_dir, show_path, silence_engine};
use crate::runtime_dir::runtime_dir_path;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueHint};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weald_daemon::{
    MountReport, Place, RuntimeDir, VolumeProperties, parse_device, reports, space_reports,
};
use weald_fuse::Identity;
use weald_store::{Store, WriteOptions};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A volume is a tree that can change: a file system in a store, which weald mount shows. \
         It compresses its data and keeps repeated data once. It shares a store with images, \
         which do not change; weald store makes the store.",
        "The server of a mounted volume is the writer of its store. Other volumes of the store \
         join it when they are mounted, and weald volume set, weald volume seal and weald store \
         add, import, rm and gc go to it. Other commands that write to the store are refused with \
         its process id.",
        "weald mount --help says which data is safe when (DURABILITY).",
    ],
    examples: &[
        (
            "Make a volume in a store",
            "weald volume create /srv/store:home",
        ),
        ("Mount it for writing", "weald mount /srv/store:home /mnt"),
        ("Show its space", "weald volume stat /srv/store:home"),
        ("List volumes", "weald volume ls /srv/store"),
        (
            "Verify every byte",
            "weald volume check --data /srv/store:home",
        ),
        ("Remove it", "weald volume rm /srv/store:home"),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        ("1", "The volume is damaged (check)."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Keep trees that can change in a store
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand, Debug)]
enum VolumeCommand {
    Create(change::CreateArgs),
    Ls(show::LsArgs),
    Info(show::InfoArgs),
    Stat(stat::StatArgs),
    Check(check::CheckArgs),
    Rm(change::RmArgs),
    Seal(seal::SealArgs),
    Set(set::SetArgs),
}

/// A volume of a store.
#[derive(Args, Debug)]
struct VolumePath {
    /// Volume: STORE:NAME
    #[arg(value_name = "STORE:NAME", value_hint = ValueHint::DirPath)]
    volume: PathBuf,
}

/// Runs the command.
pub fn run(args: &VolumeArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        VolumeCommand::Create(args) => change::create(args),
        VolumeCommand::Ls(args) => show::ls(args),
        VolumeCommand::Info(args) => show::info(args),
        VolumeCommand::Stat(args) => stat::run(args),
        VolumeCommand::Check(args) => check::run(args),
        VolumeCommand::Rm(args) => change::rm(args),
        VolumeCommand::Seal(args) => seal::seal(args),
        VolumeCommand::Set(args) => set::set(args),
    }
}

/// Sections of the help of `weald volume NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "create" => &change::CREATE_HELP,
        "ls" => &show::LS_HELP,
        "info" => &show::INFO_HELP,
        "stat" => &stat::HELP,
        "check" => &check::HELP,
        "rm" => &change::RM_HELP,
        "seal" => &seal::HELP,
        "set" => &set::HELP,
        _ => return None,
    })
}

/// How long a server may take to notice that the kernel has ended its mount.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two looks at a mount that is ending.
const PAUSE: Duration = Duration::from_millis(20);

/// Information that the command requests from the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Their mounts.
    Mounts,
    /// Also the space of volumes, which takes longer.
    Space,
}

/// Process id of a server, and one of its mounts.
pub type Mounted = (u32, MountReport);

/// Options of the writer that `weald volume COMMAND` is.
fn write_options(command: &str) -> WriteOptions {
    let pid = std::process::id();
    WriteOptions::new(format!("process {pid} (weald volume {command})"))
}

/// A volume that a command names.
struct Named {
    store: Store,
    /// Directory of the store, without symlinks.
    dir: PathBuf,
    name: String,
}

impl Named {
    /// Opens the store of `STORE:NAME`.
    fn open(path: &Path) -> anyhow::Result<Self> {
        if let Some((store, name)) = weald_store::split(path) {
            return Ok(Self {
                store: open_dir(&store)?,
                dir: store.canonicalize()?,
                name,
            });
        }
        let words = show_path(path);
        if weald_store::is_store(path) {
            bail!("{words}: names a store: add the volume, as in {words}:NAME");
        }
        let text = path.as_os_str().as_bytes();
        if let Some(at) = text.iter().rposition(|&byte| byte == b':') {
            let store = std::ffi::OsStr::from_bytes(text.get(..at).unwrap_or_default());
            open_dir(Path::new(store))?;
        }
        bail!("{words}: expected STORE:NAME, with the directory of a store before the colon")
    }

    /// As [`Named::open`]; a store stands for all its volumes.
    fn open_all(path: &Path) -> anyhow::Result<Vec<Self>> {
        if weald_store::split(path).is_some() || !weald_store::is_store(path) {
            return Ok(vec![Self::open(path)?]);
        }
        let names = open_dir(path)?.volume_names()?;
        let dir = path.canonicalize()?;
        let each = names.into_iter().map(|name| {
            let (store, dir) = (open_dir(path)?, dir.clone());
            Ok(Self { store, dir, name })
        });
        each.collect()
    }

    /// `STORE:NAME` in messages.
    fn shown(&self) -> String {
        format!("{}:{}", self.store.shown(), self.name)
    }

    /// Properties of the volume, and its mount.
    fn properties(&self) -> anyhow::Result<(VolumeProperties, Option<Mounted>)> {
        let mounted = self.mounted(Ask::Space)?;
        if let Some((_, mount)) = &mounted
            && let Some(properties) = &mount.volume
        {
            return Ok((properties.clone(), mounted));
        }
        let volumes = weald_volume::list(&self.store)?;
        let found = volumes.iter().find(|volume| volume.name == self.name);
        let found = found.map(VolumeProperties::from);
        Ok((found.with_context(|| self.missing())?, None))
    }

    fn missing(&self) -> String {
        let (words, store) = (self.shown(), self.store.shown());
        format!("{words}: no such volume: 'weald volume ls {store}' lists them")
    }

    /// Refuses a name that is no volume.
    fn find(&self) -> anyhow::Result<()> {
        if self.store.names()?.contains(&self.name) {
            bail!(
                "{}: names an image, which does not change, and this command takes a volume",
                self.shown()
            );
        }
        if !self.store.volume_names()?.contains(&self.name) {
            bail!("{}", self.missing());
        }
        Ok(())
    }

    /// Refuses a mounted volume.
    fn refuse_mounted(&self, what: &str) -> anyhow::Result<()> {
        if let Some((pid, mount)) = self.mounted(Ask::Mounts)? {
            let place = place_of(&mount);
            bail!(
                "{}: {}, and cannot be {what} meanwhile{}",
                self.shown(),
                place.describe(pid),
                match place {
                    Place::Here(_) => ": unmount it first, with 'weald umount'",
                    _ => "",
                }
            );
        }
        Ok(())
    }

    /// The mount of this volume, and the process id of its server; `None` if no server of this
    /// user has it. Waits for a server that is closing the volume.
    fn mounted(&self, ask: Ask) -> anyhow::Result<Option<Mounted>> {
        let mut path = self.dir.clone().into_os_string().into_vec();
        path.push(b':');
        path.extend_from_slice(self.name.as_bytes());
        let begun = Instant::now();
        loop {
            let found = mount_of(ask, |mount| mount.image.as_bytes() == path)?;
            match &found {
                Some((pid, mount)) if mount.is_over => wait_for_closing(*pid, mount)?,
                // After umount(2), a moment passes until the server has noticed.
                Some((_, mount))
                    if begun.elapsed() < NOTICE_TIMEOUT && place_of(mount) == Place::Nowhere =>
                {
                    std::thread::sleep(PAUSE);
                }
                _ => return Ok(found),
            }
        }
    }
}

/// Where a mount is.
pub fn place_of(mount: &MountReport) -> Place {
    let what = Identity {
        device: parse_device(&mount.device).unwrap_or_default(),
        dir: Path::new(&mount.dir).to_owned(),
        source: mount.image.clone(),
    };
    Place::of(&what, mount.is_over)
}

/// Waits while the server `pid` closes what it had mounted.
fn wait_for_closing(pid: u32, mount: &MountReport) -> anyhow::Result<()> {
    let device = parse_device(&mount.device).unwrap_or_default();
    let server = match RuntimeDir::find(&runtime_dir_path())? {
        Some(runtime_dir) => runtime_dir.mount_server(device)?,
        None => None,
    };
    if let Some(server) = server.filter(|server| server.pid() == pid) {
        let waited = server.wait_while_working();
        waited.with_context(|| format!("{}: is being closed", mount.image.display()))?;
    }
    std::thread::sleep(PAUSE);
    Ok(())
}

/// The first mount of this user that `is_wanted`, and the process id of its server.
pub fn mount_of(
    ask: Ask,
    is_wanted: impl Fn(&MountReport) -> bool,
) -> anyhow::Result<Option<Mounted>> {
    let Some(runtime_dir) = RuntimeDir::find(&runtime_dir_path())? else {
        return Ok(None);
    };
    let servers = match ask {
        Ask::Mounts => reports(&runtime_dir)?,
        Ask::Space => space_reports(&runtime_dir)?,
    };
    let mut mounts = servers.into_iter().flat_map(|server| {
        let pid = server.pid;
        server.mounts.into_iter().map(move |mount| (pid, mount))
    });
    Ok(mounts.find(|(_, mount)| is_wanted(mount)))
}
