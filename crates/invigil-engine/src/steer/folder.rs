//! The files through which orders travel, and what became of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use invigil_schema::{OrderFile, OrderReply, RunId};

use crate::letters::{self, Found};

/// The directory of all orders, in the store.
const ORDERS: &str = "orders";
const ORDER: &str = "order";
const REPLY: &str = "reply";

/// The orders of one run.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(store: &Path, run_id: &RunId) -> Folder {
        let path = store.join(ORDERS).join(run_id.as_str());
        Folder { path }
    }

    /// From now on orders can be given.
    pub(super) fn make(&self) -> io::Result<()> {
        letters::make_box(&self.path)
    }

    /// Fails with `NotFound` if nobody takes orders.
    pub(super) fn leave(&self, order: &OrderFile) -> io::Result<()> {
        letters::leave(&self.file(&order.id, ORDER), order)
    }

    /// False if somebody has taken it.
    pub(super) fn take_back(&self, id: &str) -> bool {
        fs::remove_file(self.file(id, ORDER)).is_ok()
    }

    /// The orders that were left, oldest first: their ids grow with time.
    pub(super) fn left(&self) -> Vec<String> {
        letters::names(&self.path, ORDER).unwrap_or_default()
    }

    pub(super) fn take(&self, id: &str) -> Found<OrderFile> {
        letters::take(&self.file(id, ORDER))
    }

    /// Whether it is told, or nobody is there to tell.
    pub(super) fn reply(&self, reply: &OrderReply) -> bool {
        let left = letters::leave(&self.file(&reply.ended.id, REPLY), reply);
        let gone = [io::ErrorKind::NotFound, io::ErrorKind::AlreadyExists];
        left.map_or_else(|error| gone.contains(&error.kind()), |()| true)
    }

    pub(super) fn take_reply(&self, id: &str) -> Found<OrderReply> {
        letters::take(&self.file(id, REPLY))
    }

    pub(super) fn is_there(&self) -> bool {
        self.path.is_dir()
    }

    /// The run is over.
    pub(super) fn remove(&self) {
        drop(fs::remove_dir_all(&self.path));
    }

    fn file(&self, id: &str, kind: &str) -> PathBuf {
        self.path.join(format!("{id}.{kind}"))
    }
}
