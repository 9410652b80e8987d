//! How much a run may use.

use std::time::Duration;

/// How much the whole tree of a run may use; it is killed when it uses more. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Processor time of all processes together.
    pub cpu: Option<Duration>,
    /// Bytes of memory of all processes together.
    pub memory: Option<u64>,
    /// Processes alive at once; threads do not count.
    pub processes: Option<u32>,
    /// Bytes of one file. A process that writes more gets `SIGXFSZ` or `EFBIG`, as with `ulimit -f`.
    pub file_size: Option<u64>,
}
