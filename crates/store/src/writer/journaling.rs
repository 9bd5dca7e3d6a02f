//! The state of the tables that the journal has to lead to, and a journal that is made at once.

use super::StoreWriter;
use crate::journal::TablesState;
use weald_format::Result;

impl StoreWriter {
    /// The last commit of the tables.
    pub(crate) fn tables_state(&self) -> Result<TablesState> {
        Ok(TablesState {
            commit: self.commit_no,
            sum: self.engine.row_sum()?,
        })
    }

    /// Makes the journal, if there is none, or ends the file of rows that is being made.
    ///
    /// # Errors
    /// `Io`, `Corrupt`. A journal that cannot be written is none.
    pub(crate) fn begin_journal(&mut self) -> Result<()> {
        if !self.journal.is_whole() {
            let tables = self.tables_state()?;
            self.journal.continue_after(tables, &self.engine);
            self.journal.finish();
        }
        Ok(())
    }
}
