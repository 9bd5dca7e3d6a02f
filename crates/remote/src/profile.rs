//! Credentials of a bucket from the files of the AWS tools, where the environment gives none.

use std::collections::HashMap;
use std::path::PathBuf;

/// Largest file that is read, bytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// What a profile says about a bucket: the keys of the files, such as `aws_access_key_id`.
#[derive(Default)]
pub struct Profile(HashMap<String, String>);

impl Profile {
    /// Reads the profile that `AWS_PROFILE` names, or `default`. Files that cannot be read say
    /// nothing.
    pub fn read() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let name = variable("AWS_PROFILE").unwrap_or_else(|| "default".into());
        let home = || variable("HOME").map(PathBuf::from);
        let file = |variable_name: &str, default: &str| {
            let named = variable(variable_name).map(PathBuf::from);
            named.or_else(|| Some(home()?.join(".aws").join(default)))
        };
        let mut profile = Self::default();
        // What is in the credentials counts more than what is in the configuration.
        for (path, section) in [
            (file("AWS_CONFIG_FILE", "config"), format!("profile {name}")),
            (file("AWS_CONFIG_FILE", "config"), name.clone()),
            (
                file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
                name.clone(),
            ),
        ] {
            let text = path.and_then(|path| {
                let is_short = std::fs::metadata(&path).is_ok_and(|m| m.len() <= FILE_LEN_MAX);
                is_short.then(|| std::fs::read_to_string(&path).ok())?
            });
            profile
                .0
                .extend(section_of(&text.unwrap_or_default(), &section));
        }
        profile
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// The keys of the section `wanted` of a file with lines `[SECTION]` and `KEY = VALUE`.
fn section_of(text: &str, wanted: &str) -> Vec<(String, String)> {
    let mut is_wanted = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            is_wanted = name.trim() == wanted;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_wanted)
            && !line.starts_with(['#', ';'])
        {
            found.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::section_of;

    /// Would catch: the keys of another profile, and comments that count.
    #[test]
    fn a_section_has_its_own_keys() {
        let text = "[default]\na=1\n\n[ work ]\n# a = 2\nA = 3 = 4\nb=\n[other]\na=5\n";
        let found = section_of(text, "work");
        assert_eq!(
            found,
            [("a".into(), "3 = 4".into()), ("b".into(), String::new())]
        );
        assert!(section_of(text, "none").is_empty());
    }
}
