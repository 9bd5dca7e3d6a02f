//! Options about the attributes that an image stores.

use crate::parse;
use crate::shape::ATTRIBUTES;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use weald_builder::mode::ModeRule;
use weald_builder::{AttributeRules, BuildOptions, HardLinks, MtimeRule, RootRules};
use weald_filter::{AttributeChoice, IdMap, IdRange, XattrRules};
use weald_format::Xattr;
use weald_ingest::read_additions;

/// What is kept of attributes.
#[derive(Args, Debug, Default)]
pub struct AttributeChoiceArgs {
    /// Keep the extended attributes that one of these patterns of the shell matches, and none that
    /// a pattern after ! matches: 'user.*,!user.cache.*' (default: all)
    #[arg(
        long,
        value_name = "PATTERNS",
        value_parser = parse::xattr_rules,
        hide_short_help = true
    )]
    xattrs: Option<XattrRules>,
    /// Change these users, by number or name, in ACLs, too; repeatable, the first range that has a
    /// user decides
    #[arg(
        long,
        value_name = "FIRST[-LAST]:NEW",
        value_parser = parse::uid_range,
        hide_short_help = true
    )]
    map_uid: Vec<IdRange>,
    /// Change these groups, by number or name, in ACLs, too; repeatable
    #[arg(
        long,
        value_name = "FIRST[-LAST]:NEW",
        value_parser = parse::gid_range,
        hide_short_help = true
    )]
    map_gid: Vec<IdRange>,
}

impl AttributeChoiceArgs {
    /// The choice that these options make.
    pub fn choice(&self) -> AttributeChoice {
        AttributeChoice {
            xattrs: self.xattrs.clone().unwrap_or_default(),
            uids: IdMap::new(self.map_uid.clone()),
            gids: IdMap::new(self.map_gid.clone()),
        }
    }
}

/// Changes to attributes.
#[derive(Args, Debug)]
#[command(next_help_heading = ATTRIBUTES)]
pub struct AttributeArgs {
    /// Store this owner, and group if given, for every entry (default: as in the source)
    #[arg(
        long,
        value_name = "UID[:GID]",
        value_parser = parse::owner,
        hide_short_help = true
    )]
    owner: Option<(u32, Option<u32>)>,
    /// Store this group for every entry (default: as in the source)
    #[arg(
        long,
        value_name = "GID",
        value_parser = parse::number::<u32>,
        hide_short_help = true
    )]
    group: Option<u32>,
    /// Change permissions with a rule of chmod(1); D or F before a clause restricts it to
    /// directories or files
    #[arg(
        long,
        value_name = "RULE",
        allow_hyphen_values = true,
        value_parser = parse::mode,
        hide_short_help = true
    )]
    mode: Option<ModeRule>,
    /// Modification times: keep, TIME for all entries, or clamp:TIME for later ones (default: keep,
    /// or clamp to SOURCE_DATE_EPOCH if build finds it in the environment)
    #[arg(
        long,
        value_name = "RULE",
        allow_hyphen_values = true,
        value_parser = parse::mtime,
        hide_short_help = true
    )]
    mtime: Option<MtimeRule>,
    #[command(flatten)]
    choice: AttributeChoiceArgs,
    /// Give every file and directory this extended attribute; repeatable
    #[arg(
        long,
        value_name = "NAME=VALUE",
        value_parser = parse::xattr,
        hide_short_help = true
    )]
    set_xattr: Vec<Xattr>,
    /// Hard links: keep them, split them into files of their own, or also link files that are equal
    /// in content, attributes and times, and not empty (all-equal)
    #[arg(
        long,
        value_enum,
        value_name = "RULE",
        default_value = "keep",
        hide_short_help = true
    )]
    hard_links: HardLinksWord,
    /// Store this owner, and group if given, for the root of the tree
    #[arg(
        long,
        value_name = "UID[:GID]",
        value_parser = parse::owner,
        hide_short_help = true
    )]
    root_owner: Option<(u32, Option<u32>)>,
    /// Change the permissions of the root of the tree with a rule of chmod(1)
    #[arg(
        long,
        value_name = "RULE",
        allow_hyphen_values = true,
        value_parser = parse::mode,
        hide_short_help = true
    )]
    root_mode: Option<ModeRule>,
    /// Store this modification time for the root of the tree
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        value_parser = parse::date,
        hide_short_help = true
    )]
    root_mtime: Option<i64>,
}

impl AttributeArgs {
    /// Whether the user gave any of these options.
    pub fn is_given(&self) -> bool {
        let Self {
            owner,
            group,
            mode,
            mtime,
            choice,
            set_xattr,
            hard_links,
            root_owner,
            root_mode,
            root_mtime,
        } = self;
        let is_changed = owner.is_some() || group.is_some() || mode.is_some() || mtime.is_some();
        let has_root = root_owner.is_some() || root_mode.is_some() || root_mtime.is_some();
        let is_linked = *hard_links != HardLinksWord::Keep;
        is_changed
            || has_root
            || is_linked
            || !choice.choice().is_everything()
            || !set_xattr.is_empty()
    }

    /// Stores the given values in `options`.
    pub fn apply(&self, options: &mut BuildOptions) {
        let (uid, gid) = self.owner.unzip();
        options.uid = uid;
        options.gid = self.group.or(gid.flatten());
        options.mode.clone_from(&self.mode);
        if let Some(rule) = self.mtime {
            options.mtime = rule;
        }
        options.hard_links = match self.hard_links {
            HardLinksWord::Keep => HardLinks::Keep,
            HardLinksWord::Split => HardLinks::Split,
            HardLinksWord::AllEqual => HardLinks::AllEqual,
        };
        let (uid, gid) = self.root_owner.unzip();
        options.rules = AttributeRules {
            choice: self.choice.choice(),
            set_xattrs: self.set_xattr.clone(),
            root: RootRules {
                uid,
                gid: gid.flatten(),
                mode: self.root_mode.clone(),
                mtime: self.root_mtime,
            },
        };
    }
}

/// Entries that are laid over a tree.
#[derive(Args, Debug)]
#[command(next_help_heading = ATTRIBUTES)]
pub struct EntryArgs {
    /// Lay the lines of mtree(5) in this file over the tree: devices, directories, symlinks, files
    /// with contents=FILE, and other attributes of what is there; repeatable
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        hide_short_help = true
    )]
    add: Vec<PathBuf>,
}

impl EntryArgs {
    /// Whether there are some.
    pub fn is_given(&self) -> bool {
        !self.add.is_empty()
    }

    /// Stores them in `options`.
    ///
    /// # Errors
    /// As [`read_additions`].
    pub fn apply(&self, options: &mut BuildOptions) -> weald_format::Result<()> {
        let mut additions = Vec::new();
        for file in &self.add {
            additions.extend(read_additions(file)?);
        }
        options.additions = additions.into();
        Ok(())
    }
}

/// What becomes of hard links.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum HardLinksWord {
    /// As in the source
    Keep,
    /// Each name becomes a file of its own
    Split,
    /// Equal files become names of one file, too
    AllEqual,
}
