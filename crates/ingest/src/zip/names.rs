//! Names of members as bytes of UTF-8, or as Unix has them.

/// Characters 128 to 255 of code page 437, in which programs of MS-DOS and Windows write names.
const CODE_PAGE_437: [&str; 8] = [
    "ÇüéâäàåçêëèïîìÄÅ",
    "ÉæÆôöòûùÿÖÜ¢£¥₧ƒ",
    "áíóúñÑªº¿⌐¬½¼¡«»",
    "░▒▓│┤╡╢╖╕╣║╗╝╜╛┐",
    "└┴┬├─┼╞╟╚╔╩╦╠═╬╧",
    "╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀",
    "αßΓπΣσµτΦΘΩδ∞φε∩",
    "≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}",
];

/// What tells how a name is written.
#[derive(Debug, Clone, Copy)]
pub struct NameForm {
    /// The name is in UTF-8.
    pub is_utf8: bool,
    /// The archive comes from Unix: names are bytes.
    pub is_unix: bool,
}

/// The path of a member whose name is written as `raw`.
pub fn path_of(raw: &[u8], form: NameForm) -> Vec<u8> {
    let mut path = if form.is_utf8 || form.is_unix || raw.is_ascii() {
        raw.to_vec()
    } else {
        decoded(raw).into_bytes()
    };
    // Some programs of Windows write their own separator, against the rules.
    if !form.is_unix && !path.contains(&b'/') {
        for byte in path.iter_mut().filter(|byte| **byte == b'\\') {
            *byte = b'/';
        }
    }
    path
}

fn decoded(raw: &[u8]) -> String {
    let upper: Vec<char> = CODE_PAGE_437.concat().chars().collect();
    let character = |&byte: &u8| match byte {
        ..128 => char::from(byte),
        _ => {
            let found = upper.get(usize::from(byte - 128));
            found.copied().unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    };
    raw.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: a shifted table, and names of Unix that are taken for code page 437.
    #[test]
    fn names_are_decoded_as_their_program_wrote_them() {
        assert_eq!(CODE_PAGE_437.concat().chars().count(), 128);
        let dos = NameForm {
            is_utf8: false,
            is_unix: false,
        };
        // As Python's codec cp437 has them.
        assert_eq!(path_of(b"\x81\xe1\x80\xff", dos), "üßÇ\u{a0}".as_bytes());
        assert_eq!(path_of(b"a\\b", dos), b"a/b");
        assert_eq!(path_of(b"a/b\\c", dos), b"a/b\\c");
        let unix = NameForm {
            is_unix: true,
            ..dos
        };
        assert_eq!(path_of(b"\xff\\b", unix), b"\xff\\b");
        let utf8 = NameForm {
            is_utf8: true,
            ..dos
        };
        assert_eq!(path_of("ü".as_bytes(), utf8), "ü".as_bytes());
    }
}
