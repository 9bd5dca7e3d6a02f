//! Words after `-o` that mount(8), fstab, systemd and other file systems have: what each does on a
//! mount of ours.
//!
//! An image never changes, so that most words of a file system that does cannot matter to it. A
//! volume has a table of its own. A word of it that is accepted is honoured or cannot matter; a
//! word that asks for what a volume does not do is refused.

use weald_format::{Error, Result};

/// Effect of a word that no other part of the program takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// None, because of this: it is for another program, or the file system is so in any case.
    None(&'static str),
    /// The mount is refused for this reason.
    Refused(&'static str),
}

use Effect::{None as Nothing, Refused};

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounted {
    /// An image.
    Image,
    /// A volume.
    Volume,
}

use Mounted::{Image, Volume};

/// Every word of ours, and what it can be given for: a mount takes no other, and parses those that
/// it takes in `options.rs`, or in `volume_options.rs` of the daemon.
const OWN_WORDS: &[(&str, &[Mounted])] = &[
    ("allow_other", &[Image, Volume]),
    ("allow_root", &[Image, Volume]),
    ("dev", &[Image, Volume]),
    ("nodev", &[Image, Volume]),
    ("suid", &[Image, Volume]),
    ("nosuid", &[Image, Volume]),
    ("exec", &[Image, Volume]),
    ("noexec", &[Image, Volume]),
    ("atime", &[Image, Volume]),
    ("noatime", &[Image, Volume]),
    ("user", &[Image, Volume]),
    ("users", &[Image, Volume]),
    ("owner", &[Image, Volume]),
    ("group", &[Image, Volume]),
    ("workers", &[Image, Volume]),
    ("max_readahead", &[Image, Volume]),
    ("fsname", &[Image, Volume]),
    ("subtype", &[Image, Volume]),
    ("comment", &[Image, Volume]),
    // A volume is one state, without base images and decoded blocks, and owners can be changed.
    ("follow", &[Image]),
    ("generation", &[Image]),
    ("digest", &[Image]),
    ("basedir", &[Image]),
    ("offset", &[Image]),
    ("subdir", &[Image]),
    ("uid", &[Image]),
    ("gid", &[Image]),
    ("map_uid", &[Image]),
    ("map_gid", &[Image]),
    ("umask", &[Image]),
    ("cachesize", &[Image]),
    ("kernel", &[Image]),
    ("overlay", &[Image]),
    ("upperdir", &[Image]),
    ("workdir", &[Image]),
    ("adoptupper", &[Image]),
    ("verity", &[Image]),
    ("fsverity", &[Image]),
    ("viewcache", &[Image]),
    ("viewlimit", &[Image]),
    ("urlcache", &[Image]),
    ("urlcachesize", &[Image]),
    ("urltimeout", &[Image]),
    // An image has nothing to write.
    ("fuseblk", &[Volume]),
    ("nofuseblk", &[Volume]),
    ("commit-interval", &[Volume]),
    ("cache", &[Volume]),
    ("fsync", &[Volume]),
    ("barrier", &[Volume]),
    ("snapdir", &[Volume]),
    ("wait", &[Volume]),
    ("log", &[Volume]),
    ("mode", &[Volume]),
];

/// Refuses a word of ours that what is mounted does not have, and one that nobody has.
///
/// # Errors
/// `Invalid`.
pub(crate) fn refuse_foreign(word: &str, mounted: Mounted) -> Result<()> {
    let key = word.split_once('=').map_or(word, |(key, _)| key);
    let known = OWN_WORDS.iter().find(|(known, _)| *known == key);
    Err(Error::invalid(match (known, mounted) {
        (Some((_, takers)), _) if takers.contains(&mounted) => return Ok(()),
        (Some(_), Image) => "this is an option of volumes, not of images",
        (Some(_), Volume) => "this is an option of images, not of volumes",
        (None, _) => "there is no such option ('weald mount --help' lists them)",
    }))
}

/// A volume is so in any case.
const ALWAYS: &str = "always so";

/// Words of both kinds of mounts for other programs.
const WORDS_OF_OTHERS: &[&str] = &[
    "", "defaults", "auto", "noauto", "nouser", "nousers", "noowner", "nogroup", "nofail",
    "_netdev", "silent", "loud",
];

/// Words without effect on an image, whose tree and times never change.
const WORDS_OF_IMAGES: &[&str] = &[
    "ro",
    "default_permissions",
    "async",
    "sync",
    "dirsync",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
];

/// Words of file systems that change, on a volume. `WritableOptions` takes those that it honours.
const WORDS_OF_VOLUMES: &[(&str, Effect)] = &[
    ("default_permissions", Nothing(ALWAYS)),
    (
        "nolazytime",
        Nothing("access times go to disk with the other changes of a commit"),
    ),
    ("user_xattr", Nothing(ALWAYS)),
    (
        "nouser_xattr",
        Refused("use noxattr, which hides all extended attributes"),
    ),
    (
        "discard",
        Nothing("freed space returns to the file system of the store at once"),
    ),
    (
        "iversion",
        Nothing("the time of the last change has nanoseconds"),
    ),
    ("noiversion", Nothing(ALWAYS)),
    ("nomand", Nothing("Linux has no mandatory locks")),
    ("mand", Refused("Linux has no mandatory locks since 5.15")),
    ("noquota", Nothing("a volume has no quotas of users")),
    ("quota", Refused(NO_USER_QUOTA)),
    ("usrquota", Refused(NO_USER_QUOTA)),
    ("grpquota", Refused(NO_USER_QUOTA)),
    ("prjquota", Refused(NO_USER_QUOTA)),
    ("usrjquota", Refused(NO_USER_QUOTA)),
    ("grpjquota", Refused(NO_USER_QUOTA)),
    ("errors=remount-ro", Nothing(ALWAYS)),
    (
        "errors",
        Refused("after an error of storage a volume is read-only: expected remount-ro"),
    ),
    ("data=ordered", Nothing(ORDERED)),
    ("data=journal", Nothing(ORDERED)),
    ("data=writeback", Nothing(ORDERED)),
    (
        "data",
        Refused(
            "expected ordered, journal or writeback: all mean that after a crash a volume is a \
             prefix of its operations",
        ),
    ),
];

const NO_USER_QUOTA: &str = "a volume has quotas of directories, not of users: 'weald volume set \
                             STORE:NAME DIR --quota SIZE' sets one";

/// A volume keeps more than the strictest of these words asks for, but for unsynced data, which
/// `sync` is for.
const ORDERED: &str = "after a crash a volume is a prefix of its operations";

fn is_of_others(word: &str) -> bool {
    WORDS_OF_OTHERS.contains(&word) || word.starts_with("x-") || word.starts_with("X-")
}

/// Whether the mount of an image accepts the word `flag` and does nothing for it.
pub(crate) fn is_without_effect_on_image(flag: &str) -> bool {
    is_of_others(flag) || WORDS_OF_IMAGES.contains(&flag)
}

/// Whether the mount of a volume accepts `word`, which no other part takes, and does nothing for
/// it; false for a word that the table does not have.
///
/// # Errors
/// `Invalid` for a word that asks for what a volume does not do.
pub(crate) fn is_without_effect_on_volume(word: &str) -> Result<bool> {
    if is_of_others(word) {
        return Ok(true);
    }
    let key = word.split_once('=').map_or(word, |(key, _)| key);
    let effect = |wanted| WORDS_OF_VOLUMES.iter().find(|(word, _)| *word == wanted);
    match effect(word).or_else(|| effect(key)) {
        Some((_, Nothing(_))) => Ok(true),
        Some((_, Refused(why))) => Err(Error::invalid(*why)),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::MountOptions;

    /// Would catch: a word of the list for images that a volume accepts and ignores. Each of them
    /// is honoured by `WritableOptions`, refused, or in the table with a reason.
    #[test]
    fn no_word_of_images_reaches_a_volume_unseen() {
        for word in WORDS_OF_IMAGES {
            let is_honoured = crate::WritableOptions::default().apply(word);
            let is_known = WORDS_OF_VOLUMES.iter().any(|(known, _)| known == word);
            assert!(is_honoured != is_known, "{word}");
        }
    }

    /// Would catch: a word that the table has for what does not take it, one that is accepted where
    /// it means nothing, and one that a parser has and the table has not.
    #[test]
    fn words_of_ours_are_refused_where_they_mean_nothing() {
        for (word, takers) in OWN_WORDS {
            let refusal = |mounted, value: &str| {
                let word = format!("{word}{value}");
                let parsed = match mounted {
                    Image => MountOptions::parse([word]).map(drop),
                    Volume => {
                        let own = &mut |_: &str| Ok(false);
                        MountOptions::parse_writable([word], own).map(drop)
                    }
                };
                parsed
                    .err()
                    .map_or(String::new(), |error| error.to_string())
            };
            for mounted in [Image, Volume] {
                // A value that is wrong gives another error than a word that is.
                let refusals = ["", "=", "=1"].map(|value| refusal(mounted, value));
                let is_foreign = refusals
                    .iter()
                    .all(|text| text.contains("this is an option of"));
                let is_unknown = refusals.iter().all(|text| text.contains("no such option"));
                assert_eq!(
                    is_foreign,
                    !takers.contains(&mounted),
                    "{word} {refusals:?}"
                );
                // The daemon parses those of volumes alone.
                let is_daemons = mounted == Volume && !takers.contains(&Image);
                assert!(!is_unknown || is_daemons, "{word} {refusals:?}");
            }
        }
    }

    #[test]
    fn every_word_is_accepted_or_refused_with_its_reason() {
        for (word, effect) in WORDS_OF_VOLUMES {
            let parsed = MountOptions::parse_writable([word], &mut |_| Ok(false));
            match effect {
                Nothing(why) => {
                    assert!(!why.is_empty());
                    let defaults = MountOptions::parse_writable([""], &mut |_| Ok(false));
                    assert_eq!(parsed.expect(word), defaults.expect("no word"), "{word}");
                }
                Refused(why) => {
                    let error = parsed.expect_err(word).to_string();
                    assert!(error.contains(&format!("option '{word}'")), "{error}");
                    assert!(error.contains(why), "{error}");
                }
            }
        }
        for word in ["errors=panic", "data=none", "usrjquota=aquota.user"] {
            assert!(is_without_effect_on_volume(word).is_err(), "{word}");
        }
        assert!(!is_without_effect_on_volume("fast").expect("unknown"));
    }
}
