//! Arguments that every command shares which finds and lays contents out anew: what is told apart, in which order it lies,
//! whom it belongs to.

use crate::parse;
use clap::{Args, ValueEnum};
use weald_build::mode::ModeRule;
use weald_build::{BuildOptions, Categories, MtimeRule, Order};

/// How contents are found and laid out.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// Shortest repeat that is stored once, 64 to 4096 bytes; 0 looks for none
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    match_size: Option<u64>,
    /// What to tell apart from ordinary data; levels 0 to 3 do not expand deflate unless asked to
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CATEGORY,…")]
    categorize: Option<Vec<CategoryWord>>,
    /// Order of contents in the image [default: path]
    #[arg(long, value_enum)]
    order: Option<OrderWord>,
}

impl LayoutArgs {
    /// Whether any of them was given.
    pub fn is_given(&self) -> bool {
        self.match_size.is_some() || self.categorize.is_some() || self.order.is_some()
    }

    /// Puts what was given into `options`.
    pub fn apply(&self, options: &mut BuildOptions) {
        if let Some(len) = self.match_size {
            options.match_len_min = u32::try_from(len).unwrap_or(u32::MAX);
        }
        if let Some(words) = &self.categorize {
            let has = |word| words.contains(&CategoryWord::All) || words.contains(&word);
            options.categories = Categories {
                incompressible: has(CategoryWord::Incompressible),
                x86: has(CategoryWord::X86),
                deflate: has(CategoryWord::Deflate),
            };
        }
        if let Some(word) = self.order {
            options.order = match word {
                OrderWord::Path => Order::Path,
                OrderWord::Name => Order::Name,
            };
        }
    }
}

/// What attributes become.
#[derive(Args, Debug)]
pub struct AttributeArgs {
    /// Give everything to this owner (and group)
    #[arg(long, value_name = "UID[:GID]", value_parser = parse::owner)]
    owner: Option<(u32, Option<u32>)>,
    /// Give everything to this group
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Change permissions, as chmod does; D or F before a clause restricts it to directories or files
    #[arg(long, value_name = "RULE", value_parser = parse::mode)]
    mode: Option<ModeRule>,
    /// Times of change: TIME for all, clamp:TIME for later ones, or keep [default: keep; build clamps to SOURCE_DATE_EPOCH]
    #[arg(long, value_name = "RULE", value_parser = parse::mtime)]
    mtime: Option<MtimeRule>,
}

impl AttributeArgs {
    /// Whether any of them was given.
    pub fn is_given(&self) -> bool {
        self.owner.is_some() || self.group.is_some() || self.mode.is_some() || self.mtime.is_some()
    }

    /// Puts what was given into `options`.
    pub fn apply(&self, options: &mut BuildOptions) {
        let (uid, gid) = self.owner.unzip();
        options.uid = uid;
        options.gid = self.group.or(gid.flatten());
        options.mode.clone_from(&self.mode);
        if let Some(rule) = self.mtime {
            options.mtime = rule;
        }
    }
}

/// What can be told apart.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum CategoryWord {
    /// Nothing
    None,
    /// Everything below
    All,
    /// Data that no codec makes smaller: stored as it is
    Incompressible,
    /// Programs and libraries for x86 (ELF, PE): compressed with absolute addresses in calls
    X86,
    /// Streams in gzip and zip files: stored expanded, made again bit for bit when read
    Deflate,
}

/// In which order contents are laid out.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum OrderWord {
    /// Directory by directory
    Path,
    /// By name, then path: versions of one file lie together
    Name,
}
