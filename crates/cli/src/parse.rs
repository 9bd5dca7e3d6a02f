//! Parses values of the command line.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use weald_builder::mode::ModeRule;
use weald_builder::{CodecSpec, MtimeRule};
use weald_filter::{IdRange, XattrRules};
use weald_format::directory::Category;
use weald_format::label::Label;
use weald_format::pages::check_xattrs;
use weald_format::{Digest, FileKind, Timestamp, Xattr};
use weald_image::ImageStart;
use weald_vfs::{Aspect, Comparison, Glob, PathGlob, Permissions};

/// Bytes: a number with an optional suffix K, M, G or T (powers of 1024; `KiB` etc. are the same).
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    if digits.is_empty() {
        return Err("expected a number and an optional K, M, G or T".into());
    }
    if digits.starts_with('+') {
        return Err("one sign is enough".into());
    }
    weald_vfs::parse_size(text).ok_or_else(|| {
        let unit = &text[digits.len()..];
        // The number, or the unit, or both together are wrong.
        match (
            digits.parse::<u64>(),
            weald_vfs::parse_size(&format!("1{unit}")),
        ) {
            (Err(_), _) => "expected a number and an optional K, M, G or T".to_owned(),
            (Ok(_), Some(_)) => "too large".to_owned(),
            (Ok(_), None) => {
                let unit = unit.to_ascii_uppercase();
                let unit = weald_vfs::safe_line(&unit);
                format!("unknown unit '{unit}': expected K, M, G or T")
            }
        }
    })
}

/// Offset of the image: a size, or `auto`.
pub fn start(text: &str) -> Result<ImageStart, String> {
    match text {
        "auto" => Ok(ImageStart::Auto),
        text => Ok(size(text)?.into()),
    }
}

/// A digest in hexadecimal.
pub fn digest(text: &str) -> Result<Digest, String> {
    Digest::from_hex(text).ok_or_else(|| "expected 64 hexadecimal digits".into())
}

/// `+N`, `-N` or `N`.
pub fn comparison(text: &str) -> Result<Comparison, String> {
    let (ordering, rest) = match text.as_bytes().first() {
        Some(b'+') => (Ordering::Greater, text.get(1..).unwrap_or_default()),
        Some(b'-') => (Ordering::Less, text.get(1..).unwrap_or_default()),
        _ => (Ordering::Equal, text),
    };
    Ok(Comparison {
        ordering,
        value: size(rest)?,
    })
}

/// `MODE` (exactly), `-MODE` (all of) or `/MODE` (any of), in octal.
pub fn permissions(text: &str) -> Result<Permissions, String> {
    let octal = |digits: &str| {
        let bits = u16::from_str_radix(digits, 8)
            .ok()
            .filter(|bits| *bits <= 0o7777);
        bits.ok_or_else(|| "expected octal digits up to 7777".to_owned())
    };
    match text.as_bytes().first() {
        Some(b'-') => octal(text.get(1..).unwrap_or_default()).map(Permissions::AllOf),
        Some(b'/') => octal(text.get(1..).unwrap_or_default()).map(Permissions::AnyOf),
        _ => octal(text).map(Permissions::Exactly),
    }
}

/// Letter of a file type, as in find(1).
pub fn kind(text: &str) -> Result<FileKind, String> {
    Ok(match text {
        "f" => FileKind::Regular,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        _ => return Err("expected one of f, d, l, c, b, p, s".into()),
    })
}

/// A point in time.
pub fn time(text: &str) -> Result<Timestamp, String> {
    // clap quotes the invalid text itself.
    let expected = "expected @SECONDS or YYYY-MM-DD[ HH:MM[:SS]]";
    weald_vfs::parse_time(text).map_err(|_| expected.to_owned())
}

/// A time in seconds: a whole number, and s, m, h or d.
pub fn seconds(text: &str) -> Result<u64, String> {
    let expected = || "expected a whole number and s, m, h or d, such as 10s".to_owned();
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (text.get(..at), 1),
        Some((at, 'm')) => (text.get(..at), 60),
        Some((at, 'h')) => (text.get(..at), 3600),
        Some((at, 'd')) => (text.get(..at), 86_400),
        _ => return Err(expected()),
    };
    let number: Option<u64> = number.and_then(|number| number.parse().ok());
    let seconds = number.and_then(|number| number.checked_mul(unit));
    seconds.filter(|seconds| *seconds > 0).ok_or_else(expected)
}

/// A whole number.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "expected a whole number".to_owned())
}

/// Most threads that a command starts: as many as a build can.
const THREAD_COUNT_MAX: usize = 4095;

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|&count| count <= THREAD_COUNT_MAX);
    count.ok_or_else(|| format!("expected a number from 0 to {THREAD_COUNT_MAX}"))
}

/// Name of an aspect that `diff` compares.
pub fn aspect(text: &str) -> Result<Aspect, String> {
    let found = Aspect::ALL.into_iter().find(|aspect| aspect.word() == text);
    found.ok_or_else(|| {
        let words: Vec<&str> = Aspect::ALL.iter().map(|aspect| aspect.word()).collect();
        format!("expected one of {}", words.join(", "))
    })
}

/// A codec with an optional level after a colon; the builder checks the range.
pub fn codec(text: &str) -> Result<CodecSpec, String> {
    let (name, level) = text
        .split_once(':')
        .map_or((text, None), |(name, level)| (name, Some(level)));
    let unknown = || {
        let text = weald_vfs::safe_line(text);
        format!(
            "unknown codec '{text}': expected none, lz4, lz4hc[:LEVEL], zstd[:LEVEL], zstd-lean, \
             zstd-code, xz[:LEVEL] or brotli[:LEVEL]"
        )
    };
    let number = |default: u32| match level {
        Some(level) => level
            .parse()
            .map_err(|_| format!("'{}' is not a level", weald_vfs::safe_line(level))),
        None => Ok(default),
    };
    match (name, level) {
        ("none", None) => Ok(CodecSpec::None),
        ("lz4", None) => Ok(CodecSpec::Lz4),
        ("lz4hc", _) => Ok(CodecSpec::Lz4Hc(
            number(9)?.try_into().map_err(|_| unknown())?,
        )),
        ("zstd", _) => Ok(CodecSpec::Zstd(
            number(16)?.try_into().map_err(|_| unknown())?,
        )),
        ("zstd-lean", None) => Ok(CodecSpec::ZstdLean),
        ("zstd-code", None) => Ok(CodecSpec::ZstdCode),
        ("xz", _) => Ok(CodecSpec::Xz(number(6)?)),
        ("brotli", _) => Ok(CodecSpec::Brotli(number(9)?)),
        _ => Err(unknown()),
    }
}

/// A codec and the data that it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecChoice {
    /// The codec.
    pub codec: CodecSpec,
    /// Programs of one machine type, or all other data.
    pub category: Category,
}

/// A codec with an optional prefix `x86=` or `arm64=`.
pub fn codec_choice(text: &str) -> Result<CodecChoice, String> {
    let (category, text) = match text.split_once('=') {
        Some(("x86", text)) => (Category::X86, text),
        Some(("arm64", text)) => (Category::Arm64, text),
        _ => (Category::General, text),
    };
    let codec = codec(text)?;
    Ok(CodecChoice { codec, category })
}

/// `UID[:GID]`.
pub fn owner(text: &str) -> Result<(u32, Option<u32>), String> {
    let (uid, gid) = text
        .split_once(':')
        .map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let gid = gid.map(|gid| id_of(gid, GROUPS)).transpose()?;
    Ok((id_of(uid, USERS)?, gid))
}

/// Where names of users and of groups stand, and what they are.
const USERS: (&str, &str) = ("/etc/passwd", "user");
const GROUPS: (&str, &str) = ("/etc/group", "group");

/// The id of a user or a group, by number or by name.
fn id_of(text: &str, (path, kind): (&str, &str)) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let shown = weald_vfs::safe_line(text);
    let bytes = std::fs::read(path).map_err(|error| format!("'{shown}': {path}: {error}"))?;
    let listed = String::from_utf8_lossy(&bytes);
    // name:password:id:…
    let ids = listed.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(text);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    });
    let first = { ids }.next();
    first.ok_or_else(|| format!("'{shown}' is not a number and no {kind} in {path}"))
}

/// The label of a generation.
pub fn label(text: &str) -> Result<Label, String> {
    Label::new(text).map_err(|error| error.to_string())
}

/// A range of users that become others, with numbers or names.
pub fn uid_range(text: &str) -> Result<IdRange, String> {
    id_range(text, USERS)
}

/// A range of groups that become others, with numbers or names.
pub fn gid_range(text: &str) -> Result<IdRange, String> {
    id_range(text, GROUPS)
}

fn id_range(text: &str, names: (&str, &str)) -> Result<IdRange, String> {
    let parsed = text.parse::<IdRange>();
    let (Err(error), Some((from, to))) = (&parsed, text.split_once(':')) else {
        return parsed.map_err(|error| error.to_string());
    };
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    if is_number(from) && is_number(to) {
        return Err(error.to_string());
    }
    let from = if is_number(from) {
        from.to_owned()
    } else {
        id_of(from, names)?.to_string()
    };
    let range = format!("{from}:{}", id_of(to, names)?).parse::<IdRange>();
    range.map_err(|error| error.to_string())
}

/// A rule that changes permissions.
pub fn mode(text: &str) -> Result<ModeRule, String> {
    let expected = "expected rules of chmod(1), such as u=rwX,go-w or 0644";
    ModeRule::parse(text).map_err(|_| expected.to_owned())
}

/// `keep`, `TIME` or `clamp:TIME`; TIME may also be seconds without `@`.
pub fn mtime(text: &str) -> Result<MtimeRule, String> {
    match text.strip_prefix("clamp:") {
        Some(text) => date(text).map(MtimeRule::Clamp),
        None if text == "keep" => Ok(MtimeRule::Keep),
        None => date(text).map(MtimeRule::Set),
    }
}

/// A time of `touch`, or seconds since 1970 with or without `@`.
pub fn date(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(seconds) => Ok(seconds),
        Err(_) => time(text).map(|time| time.seconds),
    }
}

/// Patterns of extended attributes, with commas between them.
pub fn xattr_rules(text: &str) -> Result<XattrRules, String> {
    XattrRules::parse(text.as_bytes()).map_err(|error| error.to_string())
}

/// An extended attribute, `NAME=VALUE`.
pub fn xattr(text: &str) -> Result<Xattr, String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let xattr = Xattr {
        name: name.into(),
        value: value.into(),
    };
    let checked = check_xattrs(std::slice::from_ref(&xattr)).map_err(|error| error.to_string());
    match name.split_once('.') {
        Some(("user" | "trusted" | "security", rest)) if !rest.is_empty() => {
            checked.map(|()| xattr)
        }
        _ => Err("expected a name that begins with user., trusted. or security.".to_owned()),
    }
}

/// A pattern for a name.
pub fn glob(text: &OsStr) -> weald_format::Result<Glob> {
    Glob::parse(text.as_bytes())
}

/// A pattern for a path.
pub fn path_glob(text: &OsStr) -> weald_format::Result<PathGlob> {
    PathGlob::parse(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("0", 0),
            ("7", 7),
            ("4k", 4096),
            ("1MiB", 1 << 20),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
            ("9B", 9),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "K",
            "1X",
            "-1",
            "1.5M",
            "99999999999999999999",
            "99999999999T",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn comparisons_have_signs() {
        assert_eq!(
            comparison("+1K"),
            Ok(Comparison {
                ordering: Ordering::Greater,
                value: 1024
            })
        );
        assert_eq!(
            comparison("-5"),
            Ok(Comparison {
                ordering: Ordering::Less,
                value: 5
            })
        );
        assert_eq!(
            comparison("5"),
            Ok(Comparison {
                ordering: Ordering::Equal,
                value: 5
            })
        );
        assert!(comparison("++5").is_err());
    }

    #[test]
    fn permissions_are_octal() {
        assert_eq!(permissions("4755"), Ok(Permissions::Exactly(0o4755)));
        assert_eq!(permissions("-111"), Ok(Permissions::AllOf(0o111)));
        assert_eq!(permissions("/6000"), Ok(Permissions::AnyOf(0o6000)));
        assert!(permissions("8").is_err() && permissions("17777").is_err());
    }

    #[test]
    fn codecs_have_levels() {
        assert_eq!(codec("none"), Ok(CodecSpec::None));
        assert_eq!(codec("zstd:19"), Ok(CodecSpec::Zstd(19)));
        assert_eq!(codec("zstd-lean"), Ok(CodecSpec::ZstdLean));
        assert_eq!(codec("zstd-code"), Ok(CodecSpec::ZstdCode));
        assert_eq!(codec("xz:0"), Ok(CodecSpec::Xz(0)));
        assert_eq!(codec("lz4hc"), Ok(CodecSpec::Lz4Hc(9)));
        assert_eq!(codec("brotli:11"), Ok(CodecSpec::Brotli(11)));
        let choice = |text| codec_choice(text).map(|c| (c.codec, c.category));
        assert_eq!(choice("x86=xz:1"), Ok((CodecSpec::Xz(1), Category::X86)));
        assert_eq!(choice("arm64=lz4"), Ok((CodecSpec::Lz4, Category::Arm64)));
        assert_eq!(choice("lz4"), Ok((CodecSpec::Lz4, Category::General)));
        assert!(choice("arm=lz4").is_err() && choice("x86=").is_err());
        for text in [
            "",
            "gzip",
            "lz4:1",
            "zstd:",
            "zstd:x",
            "zstd-lean:3",
            "zstd-code:3",
            "zstd:-1",
            "zstd:4294967295",
        ] {
            assert!(codec(text).is_err(), "{text}");
        }
    }

    #[test]
    fn mtime_rules() {
        assert_eq!(mtime("keep"), Ok(MtimeRule::Keep));
        assert_eq!(mtime("0"), Ok(MtimeRule::Set(0)));
        assert_eq!(mtime("@86400"), Ok(MtimeRule::Set(86_400)));
        assert_eq!(mtime("clamp:1970-01-02"), Ok(MtimeRule::Clamp(86_400)));
        assert!(mtime("clamp").is_err() && mtime("").is_err());
    }

    #[test]
    fn owners() {
        assert_eq!(owner("0"), Ok((0, None)));
        assert_eq!(owner("1:2"), Ok((1, Some(2))));
        assert_eq!(owner("root:1"), Ok((0, Some(1))));
        assert!(owner("nobody at all").is_err() && owner("1:").is_err() && owner("-1").is_err());
    }
}
