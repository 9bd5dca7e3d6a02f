//! The rows of images and volumes, whose keys are names. A damaged one costs its image or volume.

use crate::engine::Table;
use crate::layout;
use crate::writer::StoreWriter;
use std::ops::ControlFlow;
use weald_format::store::ImageRow;
use weald_format::{Error, ErrorKind, Result};

/// Rows of images or volumes by name.
#[derive(Debug)]
pub(crate) struct NamedRows<R> {
    /// Those that can be read, in order of name.
    pub rows: Vec<(String, R)>,
    /// The names of the others, which may be damaged too, each with the reason.
    pub damaged: Vec<(String, Error)>,
}

impl StoreWriter {
    /// The rows of all images, in order of name.
    ///
    /// # Errors
    /// `Corrupt` if one cannot be read; `Io`.
    pub(crate) fn image_rows(&self) -> Result<Vec<(String, ImageRow)>> {
        let found = self.named_rows(Table::Images, ImageRow::parse)?;
        match found.damaged.first() {
            Some((name, error)) => Err(self.damaged_row("image", name, error)),
            None => Ok(found.rows),
        }
    }

    /// The rows of a table whose keys are names.
    pub(crate) fn named_rows<R>(
        &self,
        table: Table,
        parse: fn(&[u8]) -> Result<R>,
    ) -> Result<NamedRows<R>> {
        let (mut rows, mut unparsed, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        self.tables().scan_readable(
            table,
            &[],
            &mut |key, value| {
                match (String::from_utf8(key.to_vec()), parse(value)) {
                    (Ok(name), Ok(row)) => rows.push((name, row)),
                    (Err(_), _) => {
                        let what = "a name that is no UTF-8";
                        let error = Error::corrupt("store metadata", 0, "S-5.4", what);
                        unparsed.push((shown(key), error));
                    }
                    (_, Err(error)) if error.kind() == ErrorKind::Corrupt => {
                        unparsed.push((shown(key), error));
                    }
                    (_, Err(error)) => return Err(error),
                }
                Ok(ControlFlow::Continue(()))
            },
            &mut |key, error| {
                damaged.push((shown(key), error));
                Ok(())
            },
        )?;
        damaged.append(&mut unparsed);
        Ok(NamedRows { rows, damaged })
    }

    /// The error of a row that cannot be read; `kind` says what it is of.
    pub(crate) fn damaged_row(&self, kind: &str, name: &str, error: &Error) -> Error {
        let shown = self.store().disk.shown();
        let what = format!(
            "{shown}/{}: the row of {kind} {name:?} cannot be read ({}): 'weald store salvage \
             {shown}' makes the metadata again, as far as it can",
            layout::META,
            error.what()
        );
        Error::corrupt("store metadata", 0, "S-5.1", what)
    }

    pub(crate) fn image_row(&self, name: &str) -> Result<Option<ImageRow>> {
        let value = self.tables().get(Table::Images, name.as_bytes())?;
        value.map(|value| ImageRow::parse(&value)).transpose()
    }
}
