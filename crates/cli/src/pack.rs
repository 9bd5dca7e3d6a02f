//! Options of all commands that pack a tree: packing, and display of progress.

use crate::attribute_args::AttributeArgs;
use crate::interrupt::interrupt_flag;
use crate::parse;
use crate::progress::{Display, ProgressWord};
use crate::remark_args::RemarkArgs;
use crate::rules::RuleArgs;
use crate::script_args::ScriptArgs;
use crate::shape::{
    self, ATTRIBUTES, COMPRESSION, CodecArgs, LayoutArgs, OUTPUT, RESOURCES, SELECTION,
};
use anyhow::bail;
use clap::{ArgAction, Args};
use weald_builder::{BuildOptions, MountPoints, MtimeRule};
use weald_format::label::Label;

/// How to pack a tree.
#[derive(Args, Debug)]
pub struct PackArgs {
    #[command(flatten)]
    pub rules: RuleArgs,
    #[command(flatten)]
    pub script: ScriptArgs,
    /// Stay on the file system of the source: mount points become empty directories; twice (-xx),
    /// they are left out
    #[arg(
        short = 'x',
        long,
        action = ArgAction::Count,
        hide_short_help = true,
        help_heading = SELECTION
    )]
    pub one_file_system: u8,
    /// Compression level from 0 (fastest) to 9 (smallest): sets codec, block size, shortest repeat
    /// and memory unless other options set them
    #[arg(
        short,
        long,
        value_name = "LEVEL",
        default_value_t = BuildOptions::LEVEL_DEFAULT,
        help_heading = COMPRESSION
    )]
    pub level: u8,
    #[command(flatten)]
    pub codec: CodecArgs,
    /// Uncompressed bytes in a block, 4K to 64M (default: set by the level, 4M at level 7, and 16M
    /// there for trees with at most 64M of data that repeats nothing). Larger blocks compress
    /// better, smaller blocks read faster at random. Blocks of uncompressed data have at most 512K
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse::size,
        hide_short_help = true,
        help_heading = COMPRESSION
    )]
    pub block_size: Option<u64>,
    /// What the generation is, for listings: 1 to 200 bytes without control characters
    #[arg(long, value_name = "TEXT", value_parser = parse::label, hide_short_help = true)]
    pub label: Option<Label>,
    #[command(flatten)]
    pub remarks: RemarkArgs,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub attributes: AttributeArgs,
    /// Store access times (default: not stored)
    #[arg(long, hide_short_help = true, help_heading = ATTRIBUTES)]
    pub keep_atime: bool,
    /// Store inode change times (default: not stored)
    #[arg(long, hide_short_help = true, help_heading = ATTRIBUTES)]
    pub keep_ctime: bool,
    /// Store birth times (default: not stored)
    #[arg(long, hide_short_help = true, help_heading = ATTRIBUTES)]
    pub keep_btime: bool,
    /// Do not store extended attributes: ACLs, capabilities, labels
    #[arg(long, hide_short_help = true, help_heading = ATTRIBUTES)]
    pub no_xattrs: bool,
    /// Keep the fs-verity digest of each content in the image, 32 bytes each, for sum, exports and
    /// mounts (default: only if the continued image has them)
    #[arg(long, hide_short_help = true, help_heading = ATTRIBUTES)]
    pub fsverity: bool,
}

/// Threads and memory of a build.
#[derive(Args, Debug)]
pub struct ResourceArgs {
    /// Number of threads, 0 for one per CPU
    #[arg(
        short,
        long,
        value_name = "COUNT",
        default_value_t = 0,
        value_parser = parse::threads,
        help_heading = RESOURCES
    )]
    pub threads: usize,
    /// Memory limit (default: a quarter of the free memory, and at least the usual: 512M, 1G at
    /// level 8, 1280M at level 9; raised if other options need more). It decides how many threads
    /// run. A limit below the usual one also makes the search for repeats smaller; any other gives
    /// the same bytes
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_parser = parse::size,
        help_heading = RESOURCES
    )]
    pub memory: Option<u64>,
}

impl PackArgs {
    /// Build options from these arguments, within `resources`.
    ///
    /// # Errors
    /// Returns an error for values that do not fit together, and for unreadable rules or scripts.
    pub fn options(&self, resources: &ResourceArgs) -> anyhow::Result<BuildOptions> {
        let mut options = BuildOptions::level(self.level)?;
        shape::apply(&self.codec, &self.layout, &mut options)?;
        if let Some(len) = self.block_size {
            (options.block_len, options.small_tree) = (len, None);
        }
        options.threads = resources.threads;
        set_memory(&mut options, resources.memory);
        options.filter = self.rules.filter()?;
        self.script.apply(&mut options)?;
        options.label = self.remarks.label(self.label.as_ref(), None)?;
        options.mtime = mtime_of_environment()?;
        self.attributes.apply(&mut options);
        options.keep_atime = self.keep_atime;
        options.keep_ctime = self.keep_ctime;
        options.keep_btime = self.keep_btime;
        options.keep_xattrs = !self.no_xattrs;
        options.keep_fsverity = self.fsverity;
        options.mount_points = match self.one_file_system {
            0 => MountPoints::Entered,
            1 => MountPoints::Empty,
            _ => MountPoints::LeftOut,
        };
        Ok(options)
    }
}

/// Sets the memory limit to `asked`. Without it, as many threads run as fit into
/// [`automatic_limit_len`], and the limit may rise to half of the memory if one thread needs more.
/// A limit below that of the level makes the search for repeats smaller.
pub fn set_memory(options: &mut BuildOptions, asked: Option<u64>) {
    match asked {
        Some(len) => {
            options.memory_len = options.memory_len.min(len);
            options.limit_len = len;
        }
        None => {
            options.limit_len = automatic_limit_len();
            options.memory_len_max = memory_len_max();
        }
    }
}

/// Memory that the threads may take if no limit is given, bytes: a quarter of what is free.
pub fn automatic_limit_len() -> u64 {
    weald_sys::free_memory_len() / 4
}

/// Largest automatic memory limit in bytes: half of the memory of the machine or of the control
/// group.
pub fn memory_len_max() -> u64 {
    weald_sys::memory_len() / 2
}

/// Reads `SOURCE_DATE_EPOCH`; if it is set, later modification times are clamped to it.
///
/// Source: <https://reproducible-builds.org/specs/source-date-epoch/>, "should … exit with a
/// non-zero error code" if malformed.
fn mtime_of_environment() -> anyhow::Result<MtimeRule> {
    let Some(value) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(MtimeRule::Keep);
    };
    let seconds = value.to_str().and_then(|text| text.parse().ok());
    match seconds {
        Some(seconds) => Ok(MtimeRule::Clamp(seconds)),
        None => bail!("SOURCE_DATE_EPOCH: expected seconds since 1970, found {value:?}"),
    }
}

/// Output of a command that packs.
#[derive(Args, Debug)]
pub struct DisplayArgs {
    /// Print nothing but problems
    #[arg(short, long, help_heading = OUTPUT)]
    pub quiet: bool,
    /// How to show progress on standard error
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        conflicts_with = "quiet",
        hide_short_help = true,
        help_heading = OUTPUT
    )]
    pub progress: ProgressWord,
    /// Print the summary as one JSON object
    #[arg(long, hide_short_help = true, help_heading = OUTPUT)]
    pub json: bool,
}

impl DisplayArgs {
    /// Creates the display of progress.
    ///
    /// # Errors
    /// Returns an error if the signal handler cannot be installed.
    pub fn display(&self) -> anyhow::Result<Display> {
        let progress = if self.quiet {
            ProgressWord::None
        } else {
            self.progress
        };
        Ok(Display::new(progress, interrupt_flag()?))
    }
}
