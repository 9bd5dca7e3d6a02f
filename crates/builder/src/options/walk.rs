//! How directories of a source are walked: symlinks, mount points, hard links.

/// Which symlinks of a source become what they lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FollowLinks {
    /// None.
    #[default]
    None,
    /// Those that lead out of the source: absolute ones, those with more `..` than directories
    /// above them, and those with a `..` elsewhere than at the beginning. Only the text counts, as
    /// for rsync's `--copy-unsafe-links`.
    Unsafe,
    /// All.
    All,
}

impl FollowLinks {
    /// Whether the symlink with this `target` is followed, which lies `depth` directories below the
    /// root of the source.
    pub fn follows(self, depth: usize, target: &[u8]) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Unsafe => leads_out(depth, target),
        }
    }
}

/// Source: rsync 3.4, `unsafe_symlink` in `util1.c`.
fn leads_out(depth: usize, target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return true;
    }
    let (mut rest, mut up_count) = (target, 0);
    while let Some(below) = rest.strip_prefix(b"../") {
        up_count += 1;
        let name = below.iter().position(|&b| b != b'/');
        rest = &below[name.unwrap_or(below.len())..];
    }
    up_count += usize::from(rest == b"..");
    // A name before `..` can be a symlink that leads anywhere.
    let has_later_up = rest.windows(4).any(|w| w == b"/../");
    let ends_in_up = target.len() > 3 && target.ends_with(b"/..");
    up_count > depth || has_later_up || ends_in_up
}

/// What becomes of the mount points in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountPoints {
    /// They are entered.
    #[default]
    Entered,
    /// They become empty directories.
    Empty,
    /// They are left out.
    LeftOut,
}

/// What becomes of hard links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HardLinks {
    /// Names of one file stay that.
    #[default]
    Keep,
    /// Each name becomes a file of its own.
    Split,
    /// Files with the same content, attributes and times become names of one file, unless they are
    /// empty.
    AllEqual,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_out_by_their_text() {
        for (depth, target, is_out) in [
            (0, "a", false),
            (0, "./a/b", false),
            (0, "..", true),
            (1, "..", false),
            (1, "../a", false),
            (1, "../../a", true),
            (2, ".././../a", true),
            (2, "..//../a", false),
            (3, "../..", true),
            (1, "./../a", true),
            (2, "a/../b", true),
            (2, "a/..", true),
            (2, "..//..//..", true),
            (5, "/a", true),
            (5, "", true),
            (5, "..a/...", false),
        ] {
            assert_eq!(
                FollowLinks::Unsafe.follows(depth, target.as_bytes()),
                is_out,
                "{target} at {depth}"
            );
        }
        assert!(FollowLinks::All.follows(1, b"a") && !FollowLinks::None.follows(0, b"/"));
    }
}
