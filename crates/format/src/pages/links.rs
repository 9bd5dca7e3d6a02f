//! Pages of the link table.

use crate::Result;
use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint};
use crate::limits::ITEMS_PER_PAGE;

/// One row of the link table: a name of a hard-linked inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Number of the name.
    pub name_no: u64,
    /// Number of the first name of the same inode.
    pub first_no: u64,
    /// Number of names of the inode.
    pub nlink: u64,
}

/// Encodes a page of links, sorted by `name_no`.
// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub fn encode_links(links: &[Link]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, links.len() as u64);
    let columns: [fn(&Link) -> u64; 3] = [|l| l.name_no, |l| l.name_no - l.first_no, |l| l.nlink];
    for of in columns {
        column::encode(&mut out, &links.iter().map(of).collect::<Vec<_>>());
    }
    out
}

/// Parses a page of links.
///
/// # Errors
/// `Corrupt`, also for unsorted names and for a first name after a later one.
pub fn parse_links(bytes: &[u8]) -> Result<Vec<Link>> {
    let mut cursor = Cursor::new(bytes, "link page");
    let count = cursor.count(ITEMS_PER_PAGE, "link count")?;
    let names = Column::decode(&mut cursor, count)?;
    let backs = Column::decode(&mut cursor, count)?;
    let nlinks = Column::decode(&mut cursor, count)?;
    let mut links: Vec<Link> = Vec::with_capacity(count);
    for i in 0..count {
        let name_no = names.get(i);
        let first_no = name_no.checked_sub(backs.get(i)).filter(|&f| f > 0);
        let sorted = links.last().is_none_or(|l| l.name_no < name_no);
        match (first_no, nlinks.get(i)) {
            (Some(first_no), nlink) if sorted && nlink >= 2 => links.push(Link {
                name_no,
                first_no,
                nlink,
            }),
            _ => {
                return Err(cursor.error(
                    "F-14.1",
                    "links: expected sorted names, each at or after its first name, two or more",
                ));
            }
        }
    }
    cursor.finish()?;
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::damage::check_damaged;

    #[test]
    fn links_round_trip() {
        let links: Vec<Link> = (1..30)
            .map(|i| Link {
                name_no: i * 9,
                first_no: i * 9 - (i % 4),
                nlink: 2 + i % 2,
            })
            .collect();
        let bytes = encode_links(&links);
        assert_eq!(parse_links(&bytes).unwrap(), links);
        check_damaged(&bytes, parse_links);
    }
}
