//! Permission changes in the syntax of chmod(1), with the prefixes `D` and `F` of rsync's
//! `--chmod`.

use weald_format::{Error, Result};

const ALL: u16 = 0o7777;
const EXECUTE: u16 = 0o111;
const SET_IDS: u16 = 0o6000;

/// A list of changes to permission bits, applied one after the other.
///
/// Grammar: clauses separated by commas, each `[DF][ugoa…](+|-|=)perms…` or `[DF]octal`. `D`
/// limits a clause to directories, `F` to everything else. `perms` are any of `rwxXst`, or one of
/// `ugo` to copy from. A clause without `ugoa` applies to all. In contrast to chmod(1) the umask
/// is ignored, so that a rule has the same effect everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeRule {
    changes: Vec<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    target: Target,
    /// Bits that may change.
    affected: u16,
    operation: Operation,
    value: Value,
    /// Set-uid and set-gid bits that the clause names. `=` keeps the other set-id bits of a
    /// directory.
    mentioned: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    All,
    Directories,
    Others,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    /// Fixed bits. With `if_executable` the execute bits are added for directories and for files
    /// that have an execute bit.
    Bits { bits: u16, if_executable: bool },
    /// Bits of the class at this shift: 6 user, 3 group, 0 others.
    CopyOf(u32),
}

impl ModeRule {
    /// Parses a rule.
    ///
    /// # Errors
    /// `Invalid`; the message quotes the malformed clause.
    pub fn parse(text: &str) -> Result<Self> {
        let mut changes = Vec::new();
        for clause in text.split(',') {
            let parsed = parse_clause(clause, &mut changes);
            parsed.ok_or_else(|| {
                Error::invalid(format!("mode rule {text:?}: bad clause {clause:?}"))
            })?;
        }
        Ok(Self { changes })
    }

    /// Returns the low 12 mode bits after all changes to `permissions`.
    pub fn apply(&self, permissions: u16, is_dir: bool) -> u16 {
        self.changes
            .iter()
            .fold(permissions & ALL, |mode, change| change.apply(mode, is_dir))
    }
}

impl Change {
    fn apply(&self, mode: u16, is_dir: bool) -> u16 {
        let is_meant = match self.target {
            Target::All => true,
            Target::Directories => is_dir,
            Target::Others => !is_dir,
        };
        if !is_meant {
            return mode;
        }
        let value = match self.value {
            Value::Bits {
                bits,
                if_executable,
            } if if_executable && (is_dir || mode & EXECUTE != 0) => bits | EXECUTE,
            Value::Bits { bits, .. } => bits,
            Value::CopyOf(shift) => (mode >> shift & 7) * 0o111,
        };
        let spared = if is_dir { SET_IDS & !self.mentioned } else { 0 };
        let (affected, value) = (self.affected & !spared, value & self.affected & !spared);
        match self.operation {
            Operation::Add => mode | value,
            Operation::Remove => mode & !value,
            Operation::Set => mode & !affected | value,
        }
    }
}

fn parse_clause(clause: &str, changes: &mut Vec<Change>) -> Option<()> {
    let (target, rest) = match clause.as_bytes() {
        [b'D', rest @ ..] => (Target::Directories, rest),
        [b'F', rest @ ..] => (Target::Others, rest),
        whole => (Target::All, whole),
    };
    if rest.first()?.is_ascii_digit() {
        let bits = parse_octal(rest)?;
        let value = Value::Bits {
            bits,
            if_executable: false,
        };
        changes.push(Change {
            target,
            affected: ALL,
            operation: Operation::Set,
            value,
            mentioned: SET_IDS,
        });
        return Some(());
    }
    let who_len = rest.iter().take_while(|b| b"ugoa".contains(b)).count();
    let (who, mut rest) = rest.split_at(who_len);
    let affected = if who.is_empty() {
        ALL
    } else {
        who.iter().fold(0, |mask, &b| mask | affected_by(b))
    };
    loop {
        let (&operation, after) = rest.split_first()?;
        let operation = match operation {
            b'+' => Operation::Add,
            b'-' => Operation::Remove,
            b'=' => Operation::Set,
            _ => return None,
        };
        let len = after.iter().take_while(|b| !b"+-=".contains(b)).count();
        let (value, mentioned) = parse_permissions(&after[..len])?;
        changes.push(Change {
            target,
            affected,
            operation,
            value,
            mentioned: mentioned & affected,
        });
        rest = &after[len..];
        if rest.is_empty() {
            return Some(());
        }
    }
}

fn parse_octal(digits: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(digits).ok()?;
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|&bits| bits <= ALL)
}

/// Bits that a letter of `ugoa` selects.
fn affected_by(who: u8) -> u16 {
    match who {
        b'u' => 0o4700,
        b'g' => 0o2070,
        b'o' => 0o1007,
        _ => ALL,
    }
}

/// Value of the letters after an operator, and the set-uid and set-gid bits among them.
fn parse_permissions(letters: &[u8]) -> Option<(Value, u16)> {
    match letters {
        b"u" => return Some((Value::CopyOf(6), 0)),
        b"g" => return Some((Value::CopyOf(3), 0)),
        b"o" => return Some((Value::CopyOf(0), 0)),
        _ => {}
    }
    let (mut bits, mut if_executable) = (0, false);
    for letter in letters {
        bits |= match letter {
            b'r' => 0o444,
            b'w' => 0o222,
            b'x' => EXECUTE,
            b's' => SET_IDS,
            b't' => 0o1000,
            b'X' => {
                if_executable = true;
                0
            }
            _ => return None,
        };
    }
    Some((
        Value::Bits {
            bits,
            if_executable,
        },
        bits & SET_IDS,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    fn apply(rule: &str, mode: u16, is_dir: bool) -> u16 {
        ModeRule::parse(rule).unwrap().apply(mode, is_dir)
    }

    #[test]
    fn prefixes_restrict_clauses() {
        let rule = "D755,F644,Fu+x";
        assert_eq!(
            (apply(rule, 0o700, true), apply(rule, 0o600, false)),
            (0o755, 0o744)
        );
        assert_eq!(apply("D=rX", 0o600, false), 0o600);
        assert_eq!(
            (apply("0", 0o7777, false), apply("7777", 0, true)),
            (0, 0o7777)
        );
    }

    #[test]
    fn malformed_rules_are_refused_by_clause() {
        for rule in [
            "", ",", "u", "u+r,", "8", "77777", "u+q", "z+r", "+r,9", "D", "u+ug", "u r", "0x1",
            "-",
        ] {
            // A lone operator changes nothing, as in chmod(1).
            assert_eq!(ModeRule::parse(rule).is_ok(), rule == "-", "{rule:?}");
        }
        let error = ModeRule::parse("a+r,u!x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "mode rule \"a+r,u!x\": bad clause \"u!x\""
        );
    }

    /// Result of chmod(1) for `mode` with umask 0.
    fn chmod(path: &Path, rule: &str, mode: u16) -> u16 {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode.into())).unwrap();
        let script = "umask 0; exec chmod -- \"$1\" \"$2\"";
        let status = Command::new("sh")
            .args(["-c", script, "sh", rule])
            .arg(path)
            .status()
            .unwrap();
        assert!(status.success(), "{rule}");
        (std::fs::symlink_metadata(path)
            .unwrap()
            .permissions()
            .mode()
            & 0o7777) as u16
    }

    #[test]
    fn symbolic_rules_agree_with_chmod() {
        let temp = tempfile::tempdir().unwrap();
        let (file, dir) = (temp.path().join("file"), temp.path().join("dir"));
        std::fs::write(&file, b"").unwrap();
        std::fs::create_dir(&dir).unwrap();
        let rules = [
            "u+x",
            "a-w",
            "go=",
            "=r",
            "+t",
            "u+t",
            "o+t",
            "g+s",
            "u+s,g-s",
            "a+X",
            "u-x,a+X",
            "=rwX",
            "g=u",
            "o=g-w",
            "u=rwx,go=rX",
            "u=s",
            "ug=rws",
            "a=",
            "a-s",
            "u+r-w+x",
            "go-rwx",
            "+X",
            "u=g,g=o,o=u",
            "o+s",
            "-t",
            "=",
        ];
        for rule in rules {
            for mode in [0, 0o644, 0o755, 0o4711, 0o2750, 0o1777, 0o7777, 0o601] {
                assert_eq!(
                    apply(rule, mode, false),
                    chmod(&file, rule, mode),
                    "{rule} on file {mode:o}"
                );
                assert_eq!(
                    apply(rule, mode, true),
                    chmod(&dir, rule, mode),
                    "{rule} on directory {mode:o}"
                );
            }
        }
    }
}
