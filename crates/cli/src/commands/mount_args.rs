//! Arguments of `weald mount` and their help.

use crate::help::{DONE_OR_FAILED, Help, Item};
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use weald_filter::IdRange;
use weald_format::Digest;
use weald_views::composefs::VerityPolicy;

/// Mount an image as a read-only file system, or a volume for writing
#[derive(Debug, Args)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct MountArgs {
    /// Image file, STORE:NAME of an image or a volume, or URL of an image
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Mount options, separated by commas, as listed below; repeatable
    #[arg(short = 'o', long = "options", value_name = "OPTION,…")]
    pub options: Vec<String>,
    /// Decode data in the background before it is read: the data that a file of --record lists, or
    /// all
    #[arg(long, value_name = "FILE|all", value_hint = ValueHint::FilePath)]
    pub prefetch: Option<OsString>,
    /// File for a list of the data that was read, in order; written when the mount ends
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub record: Option<PathBuf>,
    /// File for a trace of all requests, in the format of chrome://tracing and Perfetto
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub trace: Option<PathBuf>,
    /// Show the image that has the name STORE:NAME at the moment: when the name moves, who opens
    /// something gets the new image
    #[arg(long, conflicts_with_all = ["record", "by_kernel"])]
    pub follow: bool,
    /// Show these users, by number or name, as others, in ACLs, too; repeatable, the first range
    /// that has a user decides
    #[arg(long, value_name = "FIRST[-LAST]:NEW", value_parser = crate::parse::uid_range)]
    pub map_uid: Vec<IdRange>,
    /// Show these groups, by number or name, as others, in ACLs, too; repeatable
    #[arg(long, value_name = "FIRST[-LAST]:NEW", value_parser = crate::parse::gid_range)]
    pub map_gid: Vec<IdRange>,
    /// Wait so many seconds for another command that writes to the store of a volume
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Serve this mount in a process of its own, with its own cache
    #[arg(long)]
    pub isolated: bool,
    /// Serve this mount in the foreground and log to standard error
    #[arg(short, long)]
    pub foreground: bool,
    /// File to which the background server appends its log; a shared server logs there from now on
    /// (default: no log)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Print errors only, no warnings
    #[arg(short, long, conflicts_with = "foreground")]
    pub quiet: bool,
    /// Be the background server: take the opened image and mount point from standard input, write
    /// to standard output when the mount is complete
    #[arg(long, hide = true)]
    pub ready_stdout: bool,
}

impl MountArgs {
    /// Arguments of a mount without further options.
    pub fn of(image: PathBuf, dir: PathBuf, options: Vec<String>) -> Self {
        Self {
            image,
            dir,
            options,
            prefetch: None,
            record: None,
            trace: None,
            follow: false,
            map_uid: Vec::new(),
            map_gid: Vec::new(),
            wait: None,
            isolated: false,
            foreground: false,
            log: None,
            kernel: KernelArgs::default(),
            quiet: false,
            ready_stdout: false,
        }
    }
}

/// Whether the kernel verifies objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Verity {
    /// Always: fail without fs-verity
    Require,
    /// If the file system of the view cache has fs-verity
    Try,
    /// Never
    Off,
}

impl From<Verity> for VerityPolicy {
    fn from(verity: Verity) -> Self {
        match verity {
            Verity::Require => Self::Require,
            Verity::Try => Self::Try,
            Verity::Off => Self::Off,
        }
    }
}

/// Flags of a mount that the kernel serves.
#[derive(Debug, Default, Args)]
pub struct KernelArgs {
    /// Let the kernel serve the mount, with EROFS and overlayfs, without a server (root)
    #[arg(long, group = "by_kernel", conflicts_with_all = ["prefetch", "record", "trace",
        "isolated", "foreground", "log"])]
    pub kernel: bool,
    /// Serve the metadata through FUSE and let overlayfs read the data, in a user namespace (Linux
    /// 6.16)
    #[arg(long, group = "by_kernel", conflicts_with_all = ["prefetch", "record", "trace",
        "isolated"])]
    pub overlay: bool,
    /// Directory of a writable layer, which keeps what is changed; it is made if it is missing
    #[arg(long, value_name = "DIR", requires = "by_kernel", value_hint = ValueHint::DirPath)]
    pub upper: Option<PathBuf>,
    /// Work directory of the writable layer, on its file system (default: beside the layer; weald
    /// umount removes it)
    #[arg(long, value_name = "DIR", requires = "upper", value_hint = ValueHint::DirPath)]
    pub work: Option<PathBuf>,
    /// Take a writable layer that was made over another image, if all changed files in it have
    /// their own data
    #[arg(long, requires = "upper")]
    pub adopt_upper: bool,
    /// Whether the kernel verifies data by fs-verity (default: try)
    #[arg(long, value_name = "WHEN", requires = "by_kernel", value_enum)]
    pub verity: Option<Verity>,
    /// Require this fs-verity digest of the metadata image: 64 hexadecimal digits, as mkcomposefs
    /// --print-digest prints for the same tree
    #[arg(long, value_name = "HEX", requires = "by_kernel", value_parser = crate::parse::digest)]
    pub digest: Option<Digest>,
    /// Directory of metadata images and objects (default: as below)
    #[arg(long, value_name = "DIR", requires = "by_kernel", value_hint = ValueHint::DirPath)]
    pub view_cache: Option<PathBuf>,
    /// Limit of the view cache: before a view is made, views without mounts are removed until it
    /// fits; a view that does not fit all the same is refused (default: a quarter of the file
    /// system, and no view is refused)
    #[arg(long, value_name = "SIZE", requires = "by_kernel", value_parser = crate::parse::size)]
    pub view_limit: Option<u64>,
}

/// Options that only volumes have.
const VOLUME_OPTIONS: (&str, &[Item]) = (
    "MOUNT OPTIONS OF VOLUMES (-o)",
    &[
        (
            "rw, ro",
            "Mount the volume for writing, or read-only (default: rw).",
        ),
        (
            "commit-interval=SECONDS",
            "Longest time between two commits, from 0.01 to 3600. A power cut or a crash of the \
             server takes back at most this much of what was not synced (default: 5).",
        ),
        (
            "cache=SIZE",
            "Memory for changes that are not on disk yet (default: 64M). When a quarter of it is \
             full, a commit begins. A writer that is faster than the disk then waits.",
        ),
        (
            "fsync=strict|data|ignore",
            "Durability that fsync(2) waits for: see DURABILITY (default: strict).",
        ),
        (
            "barrier=honour|ignore",
            "Whether the disk is synced in the order of the changes. With ignore it is synced only \
             when the volume is unmounted. Before that, a power cut can damage the whole store, \
             its images too; a killed server cannot. All mounted volumes of a store have the \
             same word. Use it for data that can be made again (default: honour).",
        ),
        (
            "log=on|off|drop",
            "Whether fsync(2) writes a record to the log of the volume, or commits. With drop, a \
             volume whose log is damaged is mounted without the synced changes that are lost, \
             which is refused otherwise (default: on).",
        ),
        (
            "mode=disk|ram",
            "With ram, the volume is loaded into memory after the mount, as far as cache= permits. \
             Its changes are saved every commit-interval, all of them or none, and when it is \
             unmounted. The defaults are then cache=1G, commit-interval=30 and fsync=ignore \
             (default: disk).",
        ),
        (
            "relatime, noatime, strictatime",
            "Change of the time of the last access by a read: if that time is older than the last \
             change or than a day, never, or always. Reads that the kernel answers from its page \
             cache never change it (default: relatime).",
        ),
        (
            "snapdir=hidden|visible",
            "Whether listings of the root have .snapshots, which find, du and rsync then enter; it \
             can be entered in any case (default: hidden).",
        ),
        (
            "diratime, nodiratime",
            "Whether a listing changes that time of a directory (default: diratime).",
        ),
        (
            "sync, dirsync, async",
            "With sync, every change is on the disk when its call returns; with dirsync, every \
             change of names: creation, removal, links, renames. Not with fsync=data, \
             fsync=ignore, barrier=ignore or mode=ram (default: async).",
        ),
        (
            "fuseblk, nofuseblk",
            "Whether the mount has a block device, a loop device without content, which makes its \
             type fuseblk: sync(2), syncfs(2) and umount(2) then wait for the volume, as below \
             (DURABILITY). Only root's mounts in the mount namespace of the system can have it, \
             not those in containers, and none with fsname=; with fuseblk the others are refused \
             (default: where it is possible, in a store that root owns and nobody else can write).",
        ),
        (
            "wait=SECONDS",
            "As --wait: how long the mount waits while another command writes to the store \
             (default: 0, and such a mount is refused).",
        ),
        (
            "remount",
            "Change ro, rw, sync, async, suid, dev, exec and the words for access times of \
             a volume that is mounted, and nothing else.",
        ),
        (
            "acl, noacl",
            "With noacl, access lists cannot be read or set and do not count. The mode of a file \
             that has one gives nobody more than its list does (default: acl).",
        ),
        (
            "user_xattr, discard, noquota, errors=remount-ro, data=WORD",
            "Accepted, because volumes are so in any case. nouser_xattr, usrquota and the like are \
             refused.",
        ),
        (
            "xattr, noxattr",
            "With noxattr, no program can read or set extended attributes. The kernel then does \
             not ask for the capability of each file that is written, which speeds up programs \
             that write many small files. Access lists and capabilities stay in the volume. \
             Modes decide, and the mode of a file with an access list shows no permission that the \
             list denies to anybody (default: xattr).",
        ),
    ],
);

/// The contract of fsync(2).
const DURABILITY: (&str, &[Item]) = (
    "DURABILITY OF VOLUMES",
    &[
        (
            "fsync(FILE), fdatasync(FILE)",
            "When it returns, the file's data, attributes and names are on stable storage. So is \
             every operation that ended before the call.",
        ),
        (
            "fsync(DIRECTORY)",
            "The same for the entries of the directory.",
        ),
        (
            "O_SYNC, O_DSYNC",
            "A write to a file that was opened so returns after an fsync.",
        ),
        (
            "syncfs(2), sync(2)",
            "On a mount of type fuseblk (see the option), with Linux 6.18 or later, as \
             fsync(DIRECTORY), for the whole volume; with fsync=ignore they do nothing. To other \
             mounts the kernel does not pass them: they make pages of shared mappings reach the \
             volume, and no more. There, fsync(2) of any directory (sync DIR) writes everything.",
        ),
        (
            "umount(2)",
            "On a mount of type fuseblk it returns when everything is on stable storage and the \
             volume is closed. For other mounts the server does that afterwards. Weald umount \
             waits for it in any case.",
        ),
        (
            "No sync",
            "After a power cut or a crash of the kernel or server, the volume is a prefix of its \
             operations: if an operation is there, every earlier one is. It lacks at most the last \
             commit-interval. No check is needed before the next mount. Pages of shared mappings \
             count as written at msync(2), fsync(2) or munmap(2).",
        ),
        (
            "fsync=data",
            "The call returns at once for a directory, and for a file whose content is on the \
             disk. A power cut takes back up to commit-interval of names and attributes, synced or \
             not. Any other fsync(2) is as strict.",
        ),
        (
            "fsync=ignore",
            "fsync(2) returns at once, and a power cut takes back up to commit-interval even of \
             synced data. The volume is still a prefix of its operations. For data that can be \
             made again.",
        ),
        (
            "Errors",
            "If the disk fails a write or a sync, the operation that waits for it gets the error. \
             The volume becomes read-only, and no later fsync succeeds. The command weald volume \
             info shows the reason. A full disk is no such error: write(2) gets ENOSPC, and \
             removing files works.",
        ),
    ],
);

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[
        VOLUME_OPTIONS,
        DURABILITY,
        (
            "MOUNT OPTIONS (-o)",
            &[
                (
                    "cachesize=SIZE",
                    "Memory limit of the cache for decoded data (default: 1/16 of the memory, \
                     between 256M and 2G). Mounts of one server share its cache; a mount with \
                     another size gets its own. Data that no program reads leaves the cache after \
                     a minute or two.",
                ),
                (
                    "workers=N",
                    "Threads that answer the kernel (default: number of CPUs plus 4, or plus 2 if \
                 at least 9/10 of the data is stored without a codec).",
                ),
                (
                    "max_readahead=SIZE",
                    "Distance of the kernel's readahead, for root's mounts (default: 256K, or 4M \
                     if \
                 at least 9/10 of the data is stored without a codec).",
                ),
                (
                    "offset=SIZE",
                    "Byte offset of the image in the file, or auto to search for it (default: 0).",
                ),
                ("digest=HEX", "Require this image digest."),
                (
                    "generation=N",
                    "Generation to mount (default: the last; weald generations lists them).",
                ),
                ("follow", "As --follow."),
                (
                    "basedir=DIR",
                    "Directory to search for base images; repeatable.",
                ),
                (
                    "subdir=PATH",
                    "Mount this directory of the image instead of its root.",
                ),
                (
                    "uid=N, gid=N",
                    "Show all files with this owner, this group, and without ACLs.",
                ),
                (
                    "map_uid=FIRST-LAST:NEW, map_gid=FIRST-LAST:NEW",
                    "As --map-uid and --map-gid, with numbers; repeatable.",
                ),
                (
                    "umask=OCTAL",
                    "Remove these permission bits from all files, and the ACLs.",
                ),
                (
                    "allow_other",
                    "Allow access by all users (default for root's mounts).",
                ),
                (
                    "allow_root",
                    "Allow access by root and the user who mounts.",
                ),
                (
                    "fsname=NAME, subtype=NAME",
                    "Source and type that /proc/mounts shows.",
                ),
                (
                    "suid, nosuid",
                    "Honour or ignore set-uid bits, set-gid bits and file capabilities (default: \
                 nosuid, except for volumes in a store that root owns and nobody else can write; \
                 only root's mounts can have suid).",
                ),
                (
                    "dev, nodev",
                    "Allow or refuse to open device nodes (default: nodev, except for volumes in \
                 a store that root owns and nobody else can write; only root's mounts can have \
                 dev). The root of a container needs suid,dev. Give neither for images and volumes \
                 that you do not trust, and nosuid,nodev for a volume made of such an image.",
                ),
                (
                    "exec, noexec, atime, noatime",
                    "As for other file systems; see mount(8).",
                ),
                ("kernel", "As --kernel, for fstab."),
                (
                    "urlcache=DIR, urlcachesize=SIZE, urltimeout=TIME",
                    "As --url-cache and --url-timeout, for fstab. The size has no default.",
                ),
                (
                    "overlay",
                    "As --overlay, for mount(8) in a user namespace. In a root's fstab use kernel: \
                     mount.weald refuses overlay outside user namespaces.",
                ),
                (
                    "upperdir=DIR, workdir=DIR, adoptupper, verity=WORD, fsverity=HEX, \
                 viewcache=DIR, viewlimit=SIZE",
                    "As --upper, --work, --adopt-upper, --verity, --digest, --view-cache and \
                 --view-limit.",
                ),
            ],
        ),
    ],
    notes: &[
        "Mount returns when programs can use the mount. One server process with one cache serves \
         all mounts of a user. The first mount starts it, and it ends with the last mount; weald \
         mounts shows it. A mount with --isolated has a process of its own, which unmounts on \
         SIGINT, SIGTERM or SIGHUP.",
        "STORE:NAME of a volume is mounted for writing, by a process that is the writer of the \
         store until the unmount. Further volumes of the store that this user mounts join that \
         process: if it ends, all of them do. With --isolated or --foreground they are refused. \
         Another mount of the same volume is refused with the process id of the first. SIGTERM, \
         SIGINT and umount write everything to disk. weald umount returns when that is done.",
        "Mount accepts and ignores options that only mount(8), fstab or systemd use. It refuses \
         rw for images, because these are read-only. mount.weald(8) describes mount -t weald and \
          fstab.",
        "With --kernel the kernel serves the mount: EROFS the metadata, overlayfs the data, which \
         lie as files (objects) in a view cache. The first mount of a tree writes them, later ones \
         use them. The cache is STORE/views for an image of a store. For an image file it is \
         weald/views in $XDG_CACHE_HOME, or else in /var/cache. The command weald store gc --views \
         empties it.",
        "A mount of a URL has a process of its own, which keeps the environment of this command: \
         credentials, proxies, and the cache of --url-cache. A read waits for a server that is \
         away as --url-timeout says, then it fails (EIO); when the server is back, reads work \
         again. If another object takes the place of the image, reads of what is not cached fail.",
        "With --follow, weald store add --replace, import --replace and mv --replace change what \
         the mount shows, without a delay and without an unmount. An open file, an open directory \
         and a working directory below the root stay with their image, and the store keeps it for \
         them. A program that needs several files of one image opens a directory below the root \
         and reads from there. Without the name the mount stays as it is. Mounts inside such a \
         mount are detached when the name moves.",
        "With --overlay a user mounts in a user namespace, without rights on the host. A server \
         shows the metadata through FUSE; overlayfs reads the data from a view cache below \
         $XDG_CACHE_HOME or ~/.cache. The server ends with the mount. Owners that the namespace \
         does not map are shown as nobody.",
        "The socket of the server is in $WEALD_RUNTIME_DIR, or else in /run/weald (root), or \
         else in $XDG_RUNTIME_DIR/weald, or else in /tmp/weald-UID.",
    ],
    examples: &[
        ("Mount an image", "weald mount forest.weald /mnt"),
        (
            "Show the files of root as those of user 1000",
            "weald mount --map-uid root:1000 --map-gid root:1000 forest.weald /mnt",
        ),
        (
            "Mount what the name latest means, also when it moves",
            "weald mount --follow /srv/store:latest /mnt",
        ),
        (
            "Mount with a larger cache, and run no program from it",
            "weald mount -o cachesize=1G,noexec forest.weald /mnt",
        ),
        (
            "Mount an image of another user in a process of its own",
            "weald mount --isolated untrusted.weald /mnt",
        ),
        (
            "Mount the root of a container, with set-uid programs and devices",
            "weald mount -o suid,dev root.weald /srv/root",
        ),
        (
            "Mount through the kernel, without a server",
            "weald mount --kernel forest.weald /mnt",
        ),
        (
            "Write to the mount, and keep what is written in a directory",
            "weald mount --kernel --upper changes forest.weald /mnt",
        ),
        (
            "Mount a volume for writing, with a commit every second",
            "weald mount -o commit-interval=1 /srv/store:home /mnt",
        ),
        (
            "Mount a volume as soon as no other command writes to its store",
            "weald mount --wait 60 /srv/store:home /mnt",
        ),
        (
            "Mount in a user namespace, and run a shell there",
            "unshare -rm sh -c 'weald mount --overlay forest.weald /mnt && exec sh'",
        ),
        (
            "Record which data is read until weald umount",
            "weald mount --record trace forest.weald /mnt",
        ),
        (
            "Decode that data before it is read",
            "weald mount --prefetch trace forest.weald /mnt",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};
