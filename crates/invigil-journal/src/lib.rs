//! The journal of a run: append, hash chain, group commit, recovery, follow, verify; blobs; the index over many runs.
//!
//! `docs/journal-format.md` states the bytes and the invariants. Everything here is synchronous. Storage and clock are
//! passed in, so that faults and times can be injected. This crate knows how facts are kept and nothing of what they
//! mean.
//!
//! - [`Store`]: a directory of runs, and the way to everything else.
//! - [`Journal`]: appends. [`Reader`]: reads, follows, checks as it goes. [`verify`]: checks everything.
//! - [`Blobs`]: payloads too large for a record. [`Index`]: a cache that answers questions over many runs.

pub mod archive;
mod blob;
mod cache;
mod chain;
mod clock;
mod error;
mod index;
mod jobs;
mod mark;
mod read;
mod recover;
mod segment;
pub mod storage;
mod store;
mod verify;
mod write;

pub use blob::{BlobError, BlobReader, Blobs};
pub use cache::IndexError;
pub use chain::{Flaw, Head, MAX_RECORD};
pub use clock::{Clock, SystemClock};
pub use error::Error;
pub use index::{Index, Refreshed, RunRow, RunState};
pub use jobs::{JobFilter, JobRow, JobState, Jobs, SessionRow};
pub use read::{Reader, Record};
pub use storage::{DiskStorage, Sharing, Storage};
pub use store::{RunRef, Store, StoreError};
pub use verify::{Damage, Expected, Report, VerifyError, verify};
pub use write::{Journal, Options, Ticket};
