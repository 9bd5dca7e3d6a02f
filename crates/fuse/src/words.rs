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
