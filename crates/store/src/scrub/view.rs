//! All tables as of one commit, for passes beside the writer.

use crate::engine::{
    Batch, BeforeCommit, Engine, ReadView, SameRows, Table, VisitDamage, VisitRow, sum_of_rows,
};
use crate::journal::TablesState;
use crate::named_rows::NamedRows;
use crate::store::Store;
use crate::writer::StoreWriter;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::journal::RowSum;
use weald_format::store::ImageRow;
use weald_format::volume::VolumeRow;
use weald_format::{CommitNo, Error, ErrorKind, Result, VolumeNo};

/// How often a table with damaged groups is read.
const REPAIR_TRIES: u32 = 3;

/// Says whether a pass has to end.
pub type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

/// The tables of one commit. It keeps rows that are removed meanwhile on the disk, so that it must
/// not last longer than a pass.
pub struct TablesView {
    /// The store, as its writer sees it.
    pub(super) store: Store,
    /// What the tables should add up to.
    pub(super) state: TablesState,
    pub(super) images: NamedRows<ImageRow>,
    pub(super) volumes: NamedRows<VolumeRow>,
    /// Volumes whose logs are being written to.
    pub(super) open: BTreeSet<VolumeNo>,
    rows: Arc<Rows>,
    live: Arc<dyn Engine>,
}

/// The rows: one view to visit them, and one for single rows meanwhile.
struct Rows {
    scanned: Mutex<Box<dyn ReadView>>,
    looked_up: Mutex<Box<dyn ReadView>>,
    sum: RowSum,
    is_over: IsOver,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl fmt::Debug for TablesView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TablesView").finish_non_exhaustive()
    }
}

/// The error of a pass that had to end.
pub(super) fn over() -> Error {
    Error::new(ErrorKind::Busy, "the scrub was asked to stop")
}

impl TablesView {
    /// The tables that `writer` has committed last. Passes end early once `is_over` says so; the
    /// logs of the volumes `open` are being written to.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn of(writer: &StoreWriter, open: BTreeSet<VolumeNo>, is_over: IsOver) -> Result<Self> {
        let state = writer.tables_state()?;
        let view = || writer.engine().read_view();
        Ok(Self {
            store: writer.store().clone(),
            images: writer.named_rows(Table::Images, ImageRow::parse)?,
            volumes: writer.named_rows(Table::Volumes, VolumeRow::parse)?,
            open,
            rows: Arc::new(Rows {
                scanned: Mutex::new(view()?),
                looked_up: Mutex::new(view()?),
                sum: state.sum,
                is_over,
            }),
            live: writer.engine(),
            state,
        })
    }

    /// The rows.
    pub fn engine(&self) -> Arc<dyn Engine> {
        self.rows.clone()
    }

    /// The rows, for the functions of this crate.
    pub(super) fn rows(&self) -> &dyn Engine {
        &*self.rows
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The last commit of the rows.
    pub fn commit_no(&self) -> CommitNo {
        self.state.commit
    }

    /// Rows of the volumes that can be read.
    pub fn volumes(&self) -> &[(String, VolumeRow)] {
        &self.volumes.rows
    }

    /// Names of the images whose rows can be read.
    pub fn image_names(&self) -> impl Iterator<Item = &str> {
        self.images.rows.iter().map(|(name, _)| name.as_str())
    }

    /// The rows of now, which can be read past damage.
    pub(super) fn live(&self) -> &dyn Engine {
        &*self.live
    }

    /// Reads all rows of now, so that damaged groups are made again, as far as they can be.
    pub(super) fn read_live(&self) -> Result<()> {
        for table in Table::ALL {
            // Commits that go on meanwhile end a pass behind a repair.
            for _ in 0..REPAIR_TRIES {
                match self.live.scan(table, &[], &mut |_, _| self.go_on()) {
                    Err(error) if error.kind() == ErrorKind::Corrupt => {}
                    other => {
                        other?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends a pass over [`TablesView::live`] if it has to.
    pub(super) fn go_on(&self) -> Result<ControlFlow<()>> {
        if (self.rows.is_over)() {
            Err(over())
        } else {
            Ok(ControlFlow::Continue(()))
        }
    }

    /// Whether the rows add up to what was committed.
    pub(super) fn is_sum(&self) -> Result<bool> {
        Ok(sum_of_rows(self.rows())? == self.state.sum)
    }
}

impl Engine for Rows {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.looked_up.lock().row(table, key)
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let view = self.scanned.lock();
        let mut last = start.to_vec();
        let mut is_of_visit = false;
        let read = view.scan(table, start, &mut |key, value| {
            if (self.is_over)() {
                is_of_visit = true;
                return Err(over());
            }
            last = key.to_vec();
            let visited = visit(key, value);
            is_of_visit = visited.is_err();
            visited
        });
        match read {
            // Rows behind are not visited: nobody counts them as there.
            Err(error) if error.kind() == ErrorKind::Corrupt && !is_of_visit => {
                damaged(&last, error)
            }
            other => other,
        }
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        Err(Error::invalid("a view does not change"))
    }

    fn row_sum(&self) -> Result<RowSum> {
        Ok(self.sum)
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        Ok(Box::new(SameRows(self)))
    }
}
