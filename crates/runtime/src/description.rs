//! The description in the page before an image: the JSON object `{"run":PATH}`, nothing else. A
//! parser for all of JSON would be an eightieth of the small program.

/// What stands before the path.
const FRONT: &str = "{\"run\":\"";
/// What stands behind it.
const BACK: &str = "\"}";

/// The description that names the program `run`.
pub fn encode(run: &str) -> String {
    let mut json = FRONT.to_owned();
    for character in run.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\0'..='\x1f' => json.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => json.push(character),
        }
    }
    json + BACK
}

/// The path that the description names; `None` if it is none.
pub fn decode(json: &[u8]) -> Option<String> {
    let json = std::str::from_utf8(json).ok()?;
    let mut quoted = json.strip_prefix(FRONT)?.strip_suffix(BACK)?.chars();
    let mut run = String::new();
    while let Some(character) = quoted.next() {
        run.push(match character {
            '"' => return None,
            '\\' => unescaped(&mut quoted)?,
            _ => character,
        });
    }
    Some(run)
}

/// The character of an escape, behind its backslash.
fn unescaped(quoted: &mut std::str::Chars<'_>) -> Option<char> {
    Some(match quoted.next()? {
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let digits = quoted.as_str().get(..4)?;
            *quoted = quoted.as_str().get(4..)?.chars();
            char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
        }
        same @ ('"' | '\\' | '/') => same,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: another description than that of files that were made by earlier versions, or
    /// than a parser of JSON reads.
    #[test]
    fn a_path_is_the_same_for_a_parser_of_json() {
        for run in [
            "AppRun",
            "",
            "a \"b\" \\c/d",
            "\n\t\x01\x1f \u{e9}\u{1f332}",
            "\\u0041",
        ] {
            let json = encode(run);
            let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            assert_eq!(value, serde_json::json!({ "run": run }));
            assert_eq!(decode(json.as_bytes()).as_deref(), Some(run));
            let other = serde_json::to_vec(&value).expect("JSON");
            assert_eq!(decode(&other).as_deref(), Some(run));
        }
    }

    #[test]
    fn other_bytes_are_no_description() {
        for json in [
            "",
            "{}",
            "{\"run\":\"",
            "{\"run\":\"a",
            "{\"run\":\"a\"b\"}",
            "{\"run\":\"\\\"}",
            "{\"run\":\"\\u12\"}",
            "{\"run\":\"\\ud800\"}",
            "{\"run\":\"\\x\"}",
            "{\"run\":\"\\u\u{e9}123\"}",
        ] {
            assert_eq!(decode(json.as_bytes()), None, "{json}");
        }
        assert_eq!(decode(b"{\"run\":\"\xff\"}"), None);
    }
}
